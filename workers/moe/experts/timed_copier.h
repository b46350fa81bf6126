// A copier that counts the bytes and seconds of another's copies.  Copies are of one thread (expert_copier.h); any may
// read the counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/base/clock.h"
#include "workers/moe/experts/expert_copier.h"

namespace switchyard::moe {

class TimedCopier : public ExpertCopier {
 public:
  explicit TimedCopier(std::unique_ptr<ExpertCopier> inner) : inner_(std::move(inner)) {}

  int depth() const override { return inner_->depth(); }
  void Start(const ExpertChunk& chunk) override {
    if (under_way_++ == 0) busy_since_ = MonotonicNow();
    inner_->Start(chunk);
  }
  Finished Await() override {
    Finished finished = inner_->Await();
    const absl::Time now = MonotonicNow();
    if (finished.status.ok()) {
      nanoseconds_ += absl::ToInt64Nanoseconds(now - busy_since_);
      bytes_ += finished.chunk.bytes;
    }
    busy_since_ = now;
    --under_way_;
    return finished;
  }
  CopyPath path() const override { return inner_->path(); }

  // These count chunks that arrived, and the time in which one at least was under way.
  int64_t bytes() const { return bytes_; }
  double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_); }

 private:
  const std::unique_ptr<ExpertCopier> inner_;
  int under_way_ = 0;
  absl::Time busy_since_;
  std::atomic<int64_t> bytes_ = 0, nanoseconds_ = 0;
};

}  // namespace switchyard::moe
