// A copier that fails the copy of a chunk whose bytes do not have the checksum of its file (expert_file.h), which may
// have been damaged since it was opened.
//
// Sums the slot's bytes on the host; the source's, while they are on their way, on a device.  Called by an expert
// store's copy thread alone, but for found_damage.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "workers/moe/experts/expert_checksum.h"
#include "workers/moe/experts/expert_copier.h"
#include "workers/moe/experts/packed_expert.h"

namespace switchyard::moe {

struct SummedCopierOptions {
  bool slots_on_host = true;
  // The checksum that the expert's bytes from this one on have to have, of a chunk.
  std::function<uint64_t(const ExpertId&, int64_t offset)> checksum;
};

class SummedCopier : public ExpertCopier {
 public:
  SummedCopier(SummedCopierOptions options, std::unique_ptr<ExpertCopier> copier)
      : options_(std::move(options)), copier_(std::move(copier)) {}

  CopyPath path() const override { return copier_->path(); }
  int depth() const override { return copier_->depth(); }
  void Start(const ExpertChunk& chunk) override {
    copier_->Start(chunk);
    if (!options_.slots_on_host) beside_ = ChecksumOf(chunk.from, chunk.bytes);  // a device's copier has a depth of one
  }
  // Also DataLoss.
  Finished Await() override {
    Finished finished = copier_->Await();
    if (!finished.status.ok()) {
      if (absl::IsDataLoss(finished.status)) found_damage_ = true;
      return finished;
    }
    const ExpertChunk& chunk = finished.chunk;
    const uint64_t arrived = options_.slots_on_host ? ChecksumOf(chunk.to, chunk.bytes) : beside_;
    const uint64_t expected = options_.checksum(chunk.id, chunk.offset);
    if (arrived == expected) return finished;
    found_damage_ = true;
    finished.status = absl::DataLossError(
        absl::StrCat("expert file: bytes [", chunk.offset, ", ", chunk.offset + chunk.bytes, ") of ",
                     chunk.id.ToString(), " have checksum 0x", absl::Hex(arrived), ", were written with 0x",
                     absl::Hex(expected), ": they have changed since the file was made"));
    return finished;
  }
  // Whether a checksum was ever wrong, or bytes could not be read.  Any thread.
  bool found_damage() const { return found_damage_; }

 private:
  const SummedCopierOptions options_;
  const std::unique_ptr<ExpertCopier> copier_;
  uint64_t beside_ = 0;  // of the chunk that is under way to a device
  std::atomic<bool> found_damage_ = false;
};

}  // namespace switchyard::moe
