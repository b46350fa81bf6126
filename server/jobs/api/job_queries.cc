#include "server/jobs/api/job_queries.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "server/jobs/job_loop.h"
#include "server/jobs/run/job_runs.h"

namespace switchyard::server {

absl::Status CheckJobs(const TrainingContext& training) {
  if (training.jobs != nullptr) return absl::OkStatus();
  if (training.no_jobs.ok()) {
    return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::NO_TRAINING,
                          "this server has no training workers (--local_train_workers)");
  }
  return rpc::MakeError(
      absl::StatusCode::kFailedPrecondition,
      absl::IsResourceExhausted(training.no_jobs) ? v1::DISK_FULL : v1::NO_TRAINING,
      absl::StrCat("training jobs are disabled since this server started: ", training.no_jobs.message(),
                   "; repair that beneath the checkpoint root and start the server again (its log "
                   "says more)"));
}

absl::StatusOr<JobPtr> GetAs(const Caller& caller, JobManager& manager, const std::string& id) {
  ASSIGN_OR_RETURN(JobPtr job, manager.Get(id));
  if (!caller.MayTouch(job->owner)) return NoSuchJob(id);
  return job;
}

void GetJobAs(const TrainingContext& training, const Caller& caller, const std::string& id,
              std::function<void(const absl::StatusOr<JobPtr>& job)> done) {
  const bool posted =
      training.jobs->Post([caller, id, done](JobManager& manager) { done(GetAs(caller, manager, id)); });
  if (!posted) done(ServerStopsError());
}

void ListJobsAs(const TrainingContext& training, const Caller& caller, JobFilter filter,
                std::function<void(const absl::StatusOr<JobPage>& page)> done) {
  if (caller.role != Role::kAdmin) filter.owner = caller.name;
  const bool posted =
      training.jobs->Post([filter = std::move(filter), done](JobManager& manager) { done(manager.List(filter)); });
  if (!posted) done(ServerStopsError());
}

}  // namespace switchyard::server
