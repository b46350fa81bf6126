// A copier that counts the bytes and seconds of another's copies.  Copies are of one thread (expert_copier.h); any may
// read the counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "workers/moe/experts/expert_copier.h"

namespace switchyard::moe {

class TimedCopier : public ExpertCopier {
 public:
  explicit TimedCopier(std::unique_ptr<ExpertCopier> inner) : inner_(std::move(inner)) {}

  absl::Status Copy(const ExpertChunk& chunk) override {
    const absl::Time start = absl::Now();
    absl::Status status = inner_->Copy(chunk);
    if (!status.ok()) return status;
    nanoseconds_ += absl::ToInt64Nanoseconds(absl::Now() - start);
    bytes_ += chunk.bytes;
    return status;
  }

  CopyPath path() const override { return inner_->path(); }
  absl::StatusOr<const char*> ReadBack(const ExpertChunk& chunk) override { return inner_->ReadBack(chunk); }

  // These count the copies that succeeded.
  int64_t bytes() const { return bytes_; }
  double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_); }

 private:
  const std::unique_ptr<ExpertCopier> inner_;
  std::atomic<int64_t> bytes_ = 0, nanoseconds_ = 0;
};

}  // namespace switchyard::moe
