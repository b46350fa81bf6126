// The RPC DeleteJob: forgets a job that has ended, then removes its folder.
#pragma once

#include <string>

#include "server/api/unary_call.h"
#include "server/jobs/api/training_service.h"
#include "server/jobs/job_manager.h"

namespace switchyard::server {

// Answers the call.  On the jobs' thread; the folder is removed on the pool of files.  Once the journal has the
// deletion the job is gone: where its folder cannot be removed now, FinishDeletions of the next server does it.
void DeleteJobAs(UnaryCall* call, const TrainingContext& training, JobManager& manager, const std::string& id);

// Removes, on the pool of files, the folders of jobs that a server had deleted when it ended.  On the jobs' thread. All
// borrowed; jobs: the loop of the thread.
void FinishDeletions(JobManager& manager, JobLoop* jobs, const RootDir* checkpoints, FrontPool* pool);

}  // namespace switchyard::server
