#include "workers/model/config/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace switchyard::model {
namespace {

absl::int128 NormElements(const ModelConfig& c) {
  return (c.norm == NormKind::kLayer ? 2 : 1) * absl::int128(c.hidden);
}

absl::int128 AttentionElements(const ModelConfig& c) {
  absl::int128 n = absl::int128(c.qkv_width()) * c.hidden + absl::int128(c.q_width()) * c.hidden;
  if (c.qkv_bias) n += c.qkv_width();
  if (c.o_bias) n += c.hidden;
  if (c.qk_norm == QkNorm::kPerHead) n += 2 * c.head_dim;
  if (c.qk_norm == QkNorm::kWholeRow) n += c.q_width() + c.kv_width();
  return n + 2 * NormElements(c);
}

absl::int128 FfnElements(const ModelConfig& c, int64_t width) {
  const absl::int128 n = absl::int128(ops::SumsWidth(c.activation, width) + width) * c.hidden;
  return c.ffn_bias ? n + width + c.hidden : n;
}

}  // namespace

int64_t KvBytesPerToken(const ModelConfig& config, DType dtype) {
  return 2 * config.kv_width() * config.num_layers() * DTypeBytes(dtype);
}

absl::int128 WeightBytes(const ModelConfig& config, DType dtype, int64_t experts_per_layer) {
  absl::int128 moe = absl::int128(config.num_experts) * config.hidden +
                     experts_per_layer * FfnElements(config, config.expert_intermediate);
  if (config.shared_intermediate > 0) moe += FfnElements(config, config.shared_intermediate) + config.hidden;
  const absl::int128 dense = FfnElements(config, config.dense_intermediate);
  const int64_t num_moe = config.num_moe_layers();
  const int64_t num_tables = config.tie_embeddings ? 1 : 2;  // embedding and lm_head
  absl::int128 elements = absl::int128(num_tables) * config.vocab_size * config.hidden + NormElements(config);
  if (config.learned_positions) elements += absl::int128(config.context) * config.hidden;
  elements += config.num_layers() * AttentionElements(config) + num_moe * moe + (config.num_layers() - num_moe) * dense;
  const absl::int128 biases = config.router_bias ? num_moe * absl::int128(config.num_experts) : 0;
  return elements * DTypeBytes(dtype) + biases * DTypeBytes(AccDType(dtype));
}

absl::int128 MemoryBytes(const ModelConfig& config, const MemoryNeed& need) {
  const bool store = need.expert_slots >= 0;
  const absl::int128 slots =
      store ? need.expert_slots * FfnElements(config, config.expert_intermediate) * DTypeBytes(need.dtype) : 0;
  return WeightBytes(config, need.dtype, store ? 0 : need.experts_per_layer) + slots + need.kv_cache_bytes;
}

absl::Status CheckMemory(const ModelConfig& config, const MemoryNeed& need, int64_t worker_bytes,
                         absl::string_view why) {
  const absl::int128 total = MemoryBytes(config, need);
  if (total <= worker_bytes) return absl::OkStatus();
  const std::string experts = need.expert_slots >= 0 ? absl::StrFormat("%d experts at a time", need.expert_slots)
                                                     : absl::StrFormat("%d experts a layer", need.experts_per_layer);
  return absl::ResourceExhaustedError(absl::StrFormat(
      "config needs %d bytes (weights in %s with %s, KV cache %d bytes), worker has %d bytes available%s", total,
      DTypeName(need.dtype), experts, need.kv_cache_bytes, std::max<int64_t>(worker_bytes, 0), why));
}

absl::Status CheckKvCapacity(const KvCapacity& room) {
  const int64_t block_bytes = room.token_bytes * room.block_size;
  if (room.available >= block_bytes) return absl::OkStatus();
  std::string beyond;
  if (room.available < 0) beyond = absl::StrFormat(", which weights and scratch are %d bytes beyond", -room.available);
  return absl::ResourceExhaustedError(
      absl::StrFormat("KV cache: needed at least %d bytes (a block of %d tokens), available %d bytes of %s%s",
                      block_bytes, room.block_size, std::max<int64_t>(room.available, 0), room.limit, beyond));
}

}  // namespace switchyard::model
