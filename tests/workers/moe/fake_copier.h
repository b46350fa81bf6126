// Copiers that tests steer: copies that wait for a word, take random time, or fail.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "workers/moe/experts/expert_copier.h"

namespace switchyard::test {

// Connects a test with its copier: the orders of the one, and the calls that the other got.  Thread-safe.
class CopyScript {
 public:
  // Chunks wait until Allow has let so many through; all pass unless Hold was called.
  void Hold() {
    absl::MutexLock lock(&mu_);
    allowed_ = 0;
    held_ = true;
  }
  void Allow(int chunks) {
    absl::MutexLock lock(&mu_);
    allowed_ += chunks;
  }
  void AllowAll() {
    absl::MutexLock lock(&mu_);
    held_ = false;
  }
  // The copy of this expert fails with this at its chunk at `offset` or behind.
  void FailAt(const moe::ExpertId& id, int64_t offset, absl::Status status) {
    absl::MutexLock lock(&mu_);
    faults_[{id.layer, id.expert}] = {offset, std::move(status)};
  }
  void Heal() {
    absl::MutexLock lock(&mu_);
    faults_.clear();
  }
  // Up to so long a chunk, drawn from the seed.
  void Delay(uint32_t seed, absl::Duration most) {
    absl::MutexLock lock(&mu_);
    random_.seed(seed);
    most_delay_ = most;
  }
  // Blocks until so many chunks have begun (those that wait included); false after 10 s.
  bool AwaitBegun(size_t chunks) {
    absl::MutexLock lock(&mu_);
    const auto begun = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return begun_.size() >= chunks; };
    return mu_.AwaitWithTimeout(absl::Condition(&begun), absl::Seconds(10));
  }
  std::vector<moe::ExpertChunk> begun() {
    absl::MutexLock lock(&mu_);
    return begun_;
  }

  // Waits as the test asked, then returns the error that the copy has.
  absl::Status Begin(const moe::ExpertChunk& chunk) {
    absl::Duration delay;
    {
      absl::MutexLock lock(&mu_);
      begun_.push_back(chunk);
      const auto may = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !held_ || allowed_ > 0; };
      mu_.AwaitWithTimeout(absl::Condition(&may), absl::Seconds(10));
      if (held_) --allowed_;
      const auto fault = faults_.find({chunk.id.layer, chunk.id.expert});
      if (fault != faults_.end() && chunk.offset >= fault->second.first) return fault->second.second;
      if (most_delay_ > absl::ZeroDuration()) {
        delay = most_delay_ * std::uniform_real_distribution<double>(0, 1)(random_);
      }
    }
    if (delay > absl::ZeroDuration()) absl::SleepFor(delay);
    return absl::OkStatus();
  }

 private:
  absl::Mutex mu_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  int allowed_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::pair<int32_t, int32_t>, std::pair<int64_t, absl::Status>> faults_ ABSL_GUARDED_BY(mu_);
  std::mt19937 random_ ABSL_GUARDED_BY(mu_);
  absl::Duration most_delay_ ABSL_GUARDED_BY(mu_);
  std::vector<moe::ExpertChunk> begun_ ABSL_GUARDED_BY(mu_);
};

class FakeCopier : public moe::ExpertCopier {
 public:
  // script: borrowed, outlives the store.  copier: what copies then.
  explicit FakeCopier(CopyScript* script,
                      std::unique_ptr<ExpertCopier> copier = std::make_unique<moe::HostExpertCopier>())
      : script_(script), copier_(std::move(copier)) {}
  void Start(const moe::ExpertChunk& chunk) override {
    finished_ = {chunk, script_->Begin(chunk)};
    if (finished_.status.ok()) finished_.status = copier_->Copy(chunk);
  }
  Finished Await() override { return std::move(finished_); }

 private:
  CopyScript* const script_;
  const std::unique_ptr<ExpertCopier> copier_;
  Finished finished_;
};

}  // namespace switchyard::test
