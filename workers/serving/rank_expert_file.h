// The machine's file of all experts (workers/moe/experts/expert_file.h), as a worker opens it: for an expert budget,
// and for a placement that changes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/checkpoint/safetensors/safetensors.h"
#include "workers/model/config/config.h"
#include "workers/moe/experts/expert_copier.h"
#include "workers/moe/experts/expert_file.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/tensor/device.h"

namespace switchyard::worker {

struct RankExpertFileInput {
  const model::ModelConfig* config = nullptr;
  const checkpoint::Checkpoint* checkpoint = nullptr;  // null: random weights
  std::string weights;                                 // what reports them from others
  DType dtype = DType::kBf16;
  int num_threads = 1;
  std::string dir = "/dev/shm";
  int64_t available_bytes = 0;    // of memory, if the file has to be built there
  Device device = Device::Cpu();  // where the experts compute
};

// As the device's products take them.
moe::PackedExpert PackedExpertOf(const model::ModelConfig& config, DType dtype, DeviceKind device);

// Opens the file, building it if nobody has.  Blocks; progress as ExpertFile's.
// Errors: InvalidArgument (a directory that cannot be used), the file's, the loader's.
absl::StatusOr<std::unique_ptr<moe::ExpertFile>> OpenRankExpertFile(const RankExpertFileInput& input,
                                                                    moe::ExpertFile::Progress progress);

// Makes the copier from the file, which must stay, into slots on the input's device.  On a device it pins the file,
// where it can.  Errors: the device's.
absl::StatusOr<std::unique_ptr<moe::ExpertCopier>> CopierFrom(const moe::ExpertFile& file, Device device);

// How long filling a rank's slots may take when it begins.
inline constexpr absl::Duration kExpertFillLimit = absl::Minutes(10);

// Bytes of a chunk of a copy: a part of an expert, a multiple of 64.
int64_t CopyChunkBytes(const moe::PackedExpert& expert);
inline constexpr int32_t kChunksPerCopy = 4;  // at least

}  // namespace switchyard::worker
