#include "server/fleet/pending_links.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace switchyard::server {

bool PendingLinks::Enter(WorkerId id, std::weak_ptr<WorkerClient> client, absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (waiting_.size() >= kMaxWaiting) return false;
  waiting_[id] = {std::move(client), now};
  return true;
}

void PendingLinks::Leave(WorkerId id) {
  absl::MutexLock lock(&mu_);
  waiting_.erase(id);
}

void PendingLinks::CheckTime(absl::Time now) {
  std::vector<std::weak_ptr<WorkerClient>> late;
  {
    absl::MutexLock lock(&mu_);
    for (auto it = waiting_.begin(); it != waiting_.end() && now - it->second.since > kLongestWait;) {
      late.push_back(std::move(it->second.client));
      it = waiting_.erase(it);
    }
  }
  for (const std::weak_ptr<WorkerClient>& waiting : late) {
    if (const std::shared_ptr<WorkerClient> client = waiting.lock()) {
      client->Close(absl::DeadlineExceededError(
          absl::StrCat("the link did not register within ", absl::FormatDuration(kLongestWait))));
    }
  }
}

}  // namespace switchyard::server
