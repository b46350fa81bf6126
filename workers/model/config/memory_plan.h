// How much memory a model needs on one rank, before any of it is allocated.
//
// Pure, in 128 bits: a config of absurd sizes gets an answer, not an overflow.
#pragma once

#include <cstdint>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "workers/model/config/config.h"
#include "workers/ops/attention/kv_format.h"
#include "workers/ops/gemm/quantized/weight_format.h"
#include "workers/tensor/device.h"
#include "workers/tensor/dtype.h"

namespace switchyard::model {

// Whether the embedding has a table of its own: not where it is tied to a plain lm_head, from which its rows come.
bool HasEmbedding(const ModelConfig& config, ops::WeightFormat head);

// Bytes of one token's keys and values over all layers.
int64_t KvBytesPerToken(const ModelConfig& config, DType dtype, ops::KvFormat format = ops::KvFormat::kPlain);

// Bytes of the weights of a rank with experts_per_layer resident experts: those and the replicated rest.  For a device
// to a byte, with the gaps between them (weights.h); on the CPU packing may round each matrix up a little (weight.h).
absl::int128 WeightBytes(const ModelConfig& config, ops::WeightType type, int64_t experts_per_layer,
                         DeviceKind device = DeviceKind::kCpu);

struct MemoryNeed {
  DType dtype = DType::kBf16;
  int64_t experts_per_layer = 0;  // resident on this rank
  int64_t kv_cache_bytes = 0;
  // >= 0: of an expert store; then no expert is resident.
  int64_t expert_slots = -1;
  DeviceKind device = DeviceKind::kCpu;
  ops::WeightFormats format = {};
  int64_t adapter_bytes = 0;  // of adapters that requests choose from, as held; they are read before other weights
  int64_t positions = 0;      // of the RoPE table: the context that is served

  ops::WeightType type() const { return {dtype, format}; }
};

// Bytes of the cosines and sines of so many positions (ops/rope/rope.h); 0 for a model without rotation.
absl::int128 RopeTableBytes(const ModelConfig& config, DType dtype, int64_t positions,
                            DeviceKind device = DeviceKind::kCpu);

// The bytes of weights, adapters, slots, RoPE table and cache.
absl::int128 MemoryBytes(const ModelConfig& config, const MemoryNeed& need);

// ResourceExhausted "config needs X bytes ..., worker has Y bytes available" when they do not fit into worker_bytes
// (negative: more is taken already than may be).  `why`: where those come from, which ends the sentence (": …").
absl::Status CheckMemory(const ModelConfig& config, const MemoryNeed& need, int64_t worker_bytes,
                         absl::string_view why = "");

// The memory that is left for the KV cache, where its size is not given.
struct KvCapacity {
  int64_t available = 0;  // bytes; negative: more is taken already than may be
  std::string limit;      // what sets it, as the user said it: "--gpu_memory_fraction=0.9 of 85899345920 bytes, of …"
  int64_t token_bytes = 0;
  int32_t block_size = 0;
};

// ResourceExhausted, with what is needed and what is available, when not one block fits.
absl::Status CheckKvCapacity(const KvCapacity& room);

}  // namespace switchyard::model
