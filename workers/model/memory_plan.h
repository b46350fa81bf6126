// How much memory a model needs on one rank, before any of it is allocated.
//
// Pure, in 128 bits: a config of absurd sizes gets an answer, not an overflow.
#pragma once

#include <cstdint>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "workers/model/config.h"
#include "workers/tensor/dtype.h"

namespace switchyard {

// Bytes of one token's keys and values over all layers.
int64_t KvBytesPerToken(const ModelConfig& config, DType dtype);

// Bytes of the weights of a rank with experts_per_layer resident experts: those and the replicated rest.  Packing may
// round each matrix up a little (weight.h).
absl::int128 WeightBytes(const ModelConfig& config, DType dtype, int64_t experts_per_layer);

struct MemoryNeed {
  DType dtype = DType::kBf16;
  int64_t experts_per_layer = 0;  // resident on this rank
  int64_t kv_cache_bytes = 0;
  // >= 0: of an expert store; then no expert is resident.
  int64_t expert_slots = -1;
};

// ResourceExhausted "config needs X GiB, worker has Y GiB" when weights and cache do not fit into worker_bytes.
absl::Status CheckMemory(const ModelConfig& config, const MemoryNeed& need, int64_t worker_bytes);

}  // namespace switchyard
