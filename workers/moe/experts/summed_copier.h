// A copier that fails the copy of an expert whose bytes do not have the checksum of its file (expert_checksum.h), which
// may have been damaged since it was opened.
//
// Sums the slot's bytes on the host, the source's, while they are on their way, on a device.  Called by an expert
// store's copy thread alone, but for found_damage.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/experts/expert_checksum.h"
#include "workers/moe/experts/expert_copier.h"
#include "workers/moe/experts/packed_expert.h"

namespace switchyard::moe {

struct SummedCopierOptions {
  int64_t expert_bytes = 0;  // chunks but an expert's last are multiples of 64
  bool slots_on_host = true;
  std::function<uint64_t(const ExpertId&)> checksum;  // that an expert has to have
};

class SummedCopier : public ExpertCopier {
 public:
  SummedCopier(SummedCopierOptions options, std::unique_ptr<ExpertCopier> copier)
      : options_(std::move(options)), copier_(std::move(copier)) {}

  // Also DataLoss, with an expert's last chunk.
  absl::Status Copy(const ExpertChunk& chunk) override {
    ExpertChecksum& sum = sums_[chunk.id];
    if (chunk.offset == 0) sum = ExpertChecksum();  // the copy before may have been given up
    const char* const bytes = options_.slots_on_host ? chunk.to : chunk.from;
    RETURN_IF_ERROR(copier_->CopyBeside(chunk, [&] { sum.Add(bytes, chunk.bytes); }));
    if (chunk.offset + chunk.bytes < options_.expert_bytes) return absl::OkStatus();
    const uint64_t arrived = sum.value(), expected = options_.checksum(chunk.id);
    sums_.erase(chunk.id);
    if (arrived == expected) return absl::OkStatus();
    found_damage_ = true;
    return absl::DataLossError(absl::StrCat("expert file: ", chunk.id.ToString(), " has checksum 0x",
                                            absl::Hex(arrived), ", was written with 0x", absl::Hex(expected),
                                            ": its bytes have changed since the file was opened"));
  }
  CopyPath path() const override { return copier_->path(); }
  absl::StatusOr<const char*> ReadBack(const ExpertChunk& chunk) override { return copier_->ReadBack(chunk); }
  // Whether a checksum was ever wrong.  Any thread.
  bool found_damage() const { return found_damage_; }

 private:
  const SummedCopierOptions options_;
  const std::unique_ptr<ExpertCopier> copier_;
  absl::flat_hash_map<ExpertId, ExpertChecksum> sums_;  // of what is under way
  std::atomic<bool> found_damage_ = false;
};

}  // namespace switchyard::moe
