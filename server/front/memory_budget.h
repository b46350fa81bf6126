// Budget of the bytes that unfinished calls hold, over all connections.
//
// While less than half of it is used, all may take of that half.  Beyond that a client may take a little of what is
// left, while it holds less than an equal part of the half: the largest wait.  Who holds less than `little` never does,
// so that the budget is exceeded by such clients alone.  Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace switchyard::server {

class MemoryBudget {
 public:
  static constexpr int64_t kPart = 8;  // of what is left beyond the half
  static constexpr int64_t kLittle = 512 << 10;

  explicit MemoryBudget(int64_t limit, int64_t little = kLittle) : little_(little), limit_(limit) {}

  // Adds to what the client holds; negative: it holds less now.
  void Add(const std::string& client, int64_t bytes) {
    if (bytes == 0) return;
    absl::MutexLock lock(&mu_);
    total_ += bytes;
    const auto it = held_.try_emplace(client, 0).first;
    if ((it->second += bytes) == 0) held_.erase(it);
  }
  // Returns how many bytes more the client may take now; 0: it must wait until others, or its own, are done.
  int64_t Room(const std::string& client, const std::string& connection = "") const {
    absl::MutexLock lock(&mu_);
    const int64_t half = limit_ / 2;
    const auto it = held_.find(client);
    const bool is_new = it == held_.end();
    const auto clients = static_cast<int64_t>(held_.size()) + (is_new ? 1 : 0);
    const int64_t own = is_new ? 0 : it->second;
    if (!connection.empty() && connection == claimant_) return std::max<int64_t>(limit_ - total_, little_ - own);
    return std::max(
        {int64_t{0}, half - total_, std::min(half / clients - own, (limit_ - total_) / kPart), little_ - own});
  }
  // One connection at a time may use all that is left, so that somebody can always finish a message where many have
  // begun one.  Does nothing while another has that claim.
  void Claim(const std::string& connection) {
    absl::MutexLock lock(&mu_);
    if (claimant_.empty()) claimant_ = connection;
  }
  void Disclaim(const std::string& connection) {
    absl::MutexLock lock(&mu_);
    if (claimant_ == connection) claimant_.clear();
  }
  // Sets the limit anew, as the memory that is left changes.
  void SetLimit(int64_t limit) {
    absl::MutexLock lock(&mu_);
    limit_ = limit;
  }
  int64_t limit() const {
    absl::MutexLock lock(&mu_);
    return limit_;
  }
  int64_t held() const {
    absl::MutexLock lock(&mu_);
    return total_;
  }

 private:
  const int64_t little_;
  mutable absl::Mutex mu_;
  int64_t limit_ ABSL_GUARDED_BY(mu_);
  int64_t total_ ABSL_GUARDED_BY(mu_) = 0;
  std::string claimant_ ABSL_GUARDED_BY(mu_);                            // empty: nobody
  absl::flat_hash_map<std::string, int64_t> held_ ABSL_GUARDED_BY(mu_);  // by client; never 0
};

}  // namespace switchyard::server
