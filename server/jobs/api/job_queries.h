// Questions about training jobs, as the RPCs answer them, for whoever asks: gRPC or HTTP.  Thread-safe.
//
// `done` is called once: on the jobs' thread, where it must not block, or at once.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/api/training_service.h"
#include "server/jobs/job_book.h"
#include "server/jobs/job_manager.h"
#include "server/keys/roles.h"

namespace switchyard::server {

// OK if this server has jobs; else FAILED_PRECONDITION, which says why not.
absl::Status CheckJobs(const TrainingContext& training);

// Returns the job if `caller` may see it: NOT_FOUND also for others' jobs, so that nobody learns of them.  On the jobs'
// thread.
absl::StatusOr<JobPtr> GetAs(const Caller& caller, JobManager& manager, const std::string& id);

// GetAs from any thread.  REQUIRES: CheckJobs was OK.
void GetJobAs(const TrainingContext& training, const Caller& caller, const std::string& id,
              std::function<void(const absl::StatusOr<JobPtr>& job)> done);
// The page of the filter's jobs that `caller` may see.  REQUIRES: CheckJobs was OK.
void ListJobsAs(const TrainingContext& training, const Caller& caller, JobFilter filter,
                std::function<void(const absl::StatusOr<JobPage>& page)> done);

}  // namespace switchyard::server
