// The machine's file of all experts (workers/moe/experts/expert_file.h), as a worker opens it: for an expert budget,
// and for a placement that changes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/checkpoint/adapters/lora_adapter.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/moe/experts/expert_copier.h"
#include "workers/moe/experts/expert_file.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/tensor/device.h"

namespace switchyard::worker {

struct RankExpertFileInput {
  const model::ModelConfig* config = nullptr;
  const checkpoint::Checkpoint* checkpoint = nullptr;  // null: random weights
  const checkpoint::LoraAdapter* adapter = nullptr;    // merged into them; null: none
  std::string weights;                                 // what reports them from others
  ops::WeightType type = {};
  int num_threads = 1;
  std::string dir = {};           // empty: in memory, or the user's cache for a file that may be larger than that
  int64_t available_bytes = 0;    // of memory, if the file has to be built there
  Device device = Device::Cpu();  // where the experts compute
  // > 0: slots on the host hold a part of the experts, so that on a disk the file need not be mapped and may be larger
  // than memory; it is built there through so much memory, which the slots take later.
  int64_t staging_bytes = 0;
};

// Opens the file, building it if nobody has; not mapped, if it may be on a disk and its directory is.  Blocks; progress
// as ExpertFile's.
// Errors: InvalidArgument (a directory that cannot be used), the file's, the loader's.
absl::StatusOr<std::unique_ptr<moe::ExpertFile>> OpenRankExpertFile(const RankExpertFileInput& input,
                                                                    moe::ExpertFile::Progress progress);

// Loads these experts of all layers, packed for the input's device, each to its place in the host's memory.  Progress
// as ExpertFile's.  Errors: the loader's.
absl::Status LoadExpertsOf(const RankExpertFileInput& input, std::vector<int32_t> experts,
                           moe::ExpertFile::Progress progress, std::function<char*(int layer, int32_t expert)> place);

// Makes the copier from the file, which must stay, into slots on the input's device.  On a device it pins the file,
// where it can.  Errors: the device's, DirectReader's.
absl::StatusOr<std::unique_ptr<moe::ExpertCopier>> CopierFrom(const moe::ExpertFile& file, Device device);

// How long filling slots of so many bytes may take when a rank begins: 10 minutes, and more for a slow disk.
inline absl::Duration ExpertFillLimit(int64_t bytes) {
  return absl::Minutes(10) + absl::Seconds(static_cast<double>(bytes) / 10e6);
}

// Bytes a second that the copier, which nobody uses yet, brings to the host's memory: of some experts of the file, in a
// fraction of a second.  Errors: the copier's.
absl::StatusOr<double> MeasureCopyRate(const moe::ExpertFile& file, const moe::ExpertForms& forms,
                                       moe::ExpertCopier* copier);

// Pieces of an expert of the largest layer at least, where it is large enough.
inline constexpr int32_t kChunksPerCopy = 4;

}  // namespace switchyard::worker
