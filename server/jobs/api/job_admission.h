// The RPCs SubmitJob, ForkJob and ResumeJob: they admit a job once its files, its model and its owner's quota of the
// disk allow it.
//
// Each answers the call, and must be called on the jobs' thread.  What reads or writes files then runs on the pool of
// files, and the job itself is made or resumed on the jobs' thread again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/api/unary_call.h"
#include "server/jobs/api/training_requests.h"
#include "server/jobs/api/training_service.h"
#include "server/jobs/job_manager.h"

namespace switchyard::server {

// A repeated request is looked up before its files are checked, since these may be gone by now.
void SubmitJobAs(UnaryCall* call, const TrainingContext& training, JobManager& manager, SubmitArgs args);

// Finds a fork that the request has made before, then the parent, which may be gone by then.
void ForkJobAs(UnaryCall* call, const TrainingContext& training, JobManager& manager, const ForkArgs& args);

// Resumes a job, perhaps on another number of workers: checks the limits of job and server first, then the model, and
// whether the owner's other jobs are within their quota of the disk.
void ResumeJobAs(UnaryCall* call, const TrainingContext& training, JobManager& manager, const std::string& id,
                 std::optional<int32_t> workers);

}  // namespace switchyard::server
