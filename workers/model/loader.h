// Loads a rank's weights from a checkpoint directory: each needed byte is read once, converted to the model's dtype and
// packed on the way through a bounded staging buffer.
//
// Resident memory stays below the held weights + kStagingBytes + a few MB.  Several threads read and pack; LoadWeights
// blocks until all is there.  Not cancellable but through `progress`.
// Errors name file, tensor, expected and found; nothing half-loaded is returned.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/model/config.h"
#include "workers/model/safetensors.h"
#include "workers/model/weights.h"
#include "workers/tensor/dtype.h"

namespace switchyard {

inline constexpr int64_t kStagingBytes = 32 << 20;

struct LoadOptions {
  DType dtype = DType::kBf16;  // to serve in; the files' own dtype may differ
  int rank = 0;
  int world = 1;
  int num_threads = 1;
  // Called from the loading threads, one at a time, about every 250 ms and at the end.  false stops the load (Cancelled).
  absl::AnyInvocable<bool(int64_t bytes_done, int64_t bytes_total)> progress;
};

// REQUIRES: the checkpoint belongs to the config.  Logs a line a second once it has taken two, and one for tensors of the
// checkpoint that the model does not use.
absl::StatusOr<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const ModelConfig& config, LoadOptions options);

}  // namespace switchyard
