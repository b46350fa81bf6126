#include "server/jobs/api/delete_job.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/base/log.h"
#include "server/jobs/api/job_queries.h"
#include "server/jobs/job_folder.h"

namespace switchyard::server {
namespace {

// Returns the freed bytes.  Not on the jobs' thread.
int64_t RemoveDeleted(JobLoop* jobs, const RootDir& checkpoints, const std::string& id) {
  const absl::StatusOr<int64_t> freed = RemoveJobFolder(checkpoints, id);
  if (!freed.ok()) {
    LogWarn(freed.status().message(), "; the next deletion tries again, or the next start of the server");
    return 0;
  }
  static_cast<void>(jobs->Post([id](JobManager& manager) { manager.FolderRemoved(id); }));
  return *freed;
}

}  // namespace

void DeleteJobAs(UnaryCall* call, const TrainingContext& training, JobManager& manager, const std::string& id) {
  absl::Status deleted = GetAs(call->caller(), manager, id).status();
  if (deleted.ok()) deleted = manager.Delete(id);
  if (!deleted.ok()) return call->Fail(deleted);
  const auto answer = [call](int64_t freed_bytes) {
    v1::DeleteJobResponse response;
    response.set_freed_bytes(freed_bytes);
    call->Reply(response);
  };
  // Those before, whose folders could not be removed.
  std::vector<std::string> left = manager.DeletedJobs().value_or(std::vector<std::string>());
  left.erase(std::remove(left.begin(), left.end(), id), left.end());
  call->request_context()->file_pool->Post(
      {.client = RequestContext::FrontClient(call->caller(), *call->context()),
       .run =
           [answer, jobs = training.jobs, checkpoints = training.checkpoints, left, id] {
             for (const std::string& other : left) RemoveDeleted(jobs, *checkpoints, other);
             answer(RemoveDeleted(jobs, *checkpoints, id));
           },
       .refuse = [answer](const absl::Status&) { answer(0); }});
}

void FinishDeletions(JobManager& manager, JobLoop* jobs, const RootDir* checkpoints, FrontPool* pool) {
  const absl::StatusOr<std::vector<std::string>> deleted = manager.DeletedJobs();
  if (!deleted.ok()) return LogWarn("folders of deleted jobs stay for now: ", deleted.status().message());
  if (deleted->empty()) return;
  pool->Post({.client = "deleted jobs",
              .run =
                  [jobs, checkpoints, ids = *deleted] {
                    for (const std::string& id : ids) {
                      LogInfo(id, ": removes the folder of a job that an earlier server has deleted");
                      RemoveDeleted(jobs, *checkpoints, id);
                    }
                  },
              .refuse = [](const absl::Status&) {}});
}

}  // namespace switchyard::server
