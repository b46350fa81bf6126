#include "server/jobs/pack_runner.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/match.h"

namespace switchyard::server {

void PackRunner::Stop() {
  std::map<std::string, std::unique_ptr<Work>> work;
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    work.swap(work_);
  }
  for (auto& [key, one] : work) one->cancelled = true;
  for (auto& [key, one] : work) one->thread.join();
}

void PackRunner::Start(const std::string& key, PackRequest request, ProgressFn progress, DoneFn done) {
  static_cast<void>(StartIfFewer("", INT_MAX, key, std::move(request), std::move(progress), std::move(done)));
}

bool PackRunner::StartIfFewer(absl::string_view prefix, int most, const std::string& key, PackRequest request,
                              ProgressFn progress, DoneFn done) {
  absl::ReleasableMutexLock lock(&mu_);
  if (stopped_) {
    lock.Release();
    done(absl::CancelledError("the server stops"));
    return true;
  }
  Reap();
  const auto runs = [prefix](const auto& entry) { return absl::StartsWith(entry.first, prefix); };
  if (std::count_if(work_.begin(), work_.end(), runs) >= most) return false;
  if (const auto last = work_.extract(key); !last.empty()) last.mapped()->thread.join();  // its `done` was called
  auto work = std::make_unique<Work>();
  Work* const raw = work.get();  // outlives its thread
  work->thread =
      std::thread([this, raw, request = std::move(request), progress = std::move(progress), done = std::move(done)] {
        done(preparer_->Pack(request, [raw, &progress](int64_t bytes_done, int64_t bytes_total) {
          progress(bytes_done, bytes_total);
          return !raw->cancelled.load();
        }));
        raw->over = true;
      });
  work_[key] = std::move(work);
  return true;
}

void PackRunner::Reap() {
  for (auto it = work_.begin(); it != work_.end();) {
    if (it->second->over.load()) {
      it->second->thread.join();
      it = work_.erase(it);
    } else {
      ++it;
    }
  }
}

void PackRunner::Cancel(const std::string& key) {
  absl::MutexLock lock(&mu_);
  if (const auto it = work_.find(key); it != work_.end()) it->second->cancelled = true;
}

}  // namespace switchyard::server
