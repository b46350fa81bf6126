// Copies as another copier does, and fails the copy of an expert whose bytes are not those that its file was made with
// (expert_checksum.h): the file is as old as a server's uptime, or older, and may be damaged since it was opened.
//
// On the host the slot's bytes are summed, which then compute; on a device the source's, while they are on their way.
// Called by an expert store's copy thread alone, but for found_damage.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  absl::Status Copy(const ExpertChunk& chunk) override;
  absl::StatusOr<const char*> ReadBack(const ExpertChunk& chunk) override { return copier_->ReadBack(chunk); }
  // Whether a copy ever failed so.  Any thread.
  bool found_damage() const { return found_damage_; }

 private:
  const SummedCopierOptions options_;
  const std::unique_ptr<ExpertCopier> copier_;
  absl::flat_hash_map<ExpertId, ExpertChecksum> sums_;  // of what is under way
  std::atomic<bool> found_damage_ = false;
};

}  // namespace switchyard::moe
