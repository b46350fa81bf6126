#include "workers/train/training_memory.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "workers/model/memory_plan.h"

namespace switchyard {
namespace {

// Of one row in one layer, as SavedLayer and MoeSaved have it.
absl::int128 SavedRowBytes(const ModelConfig& config, DType dtype, bool moe) {
  const int64_t wide = DTypeBytes(AccDType(dtype)), narrow = DTypeBytes(dtype);
  absl::int128 bytes = absl::int128(config.hidden) * wide;  // before the feed-forward
  bytes += absl::int128(config.qkv_width() + config.q_width()) * narrow;
  if (config.qk_norm != QkNorm::kNone || config.clip_qkv > 0) bytes += absl::int128(config.qkv_width()) * narrow;
  const auto ffn = [&](int64_t width) { return absl::int128(SumsWidth(config.activation, width) + width); };
  if (!moe) return bytes + ffn(config.dense_intermediate) * narrow;
  bytes += ffn(config.shared_intermediate) * narrow;
  return bytes + config.top_k * (ffn(config.expert_intermediate) + config.hidden) * narrow;
}

}  // namespace

TrainingBytes TrainingMemory(const ModelConfig& config, const TrainingNeed& need) {
  TrainingBytes bytes;
  bytes.weights = 2 * WeightBytes(config, need.dtype, need.experts_per_layer);
  bytes.parameters = 4 * WeightBytes(config, AccDType(need.dtype), need.experts_per_layer);
  if (need.offload) {
    const DType wide = AccDType(need.dtype);
    const absl::int128 experts = WeightBytes(config, wide, need.experts_per_layer) - WeightBytes(config, wide, 0);
    const int64_t layers = std::max<int64_t>(1, config.num_moe_layers());
    bytes.offloaded = 3 * experts;
    bytes.parameters -= bytes.offloaded;
    bytes.parameters += bytes.offloaded * std::min<int64_t>(layers, 2) / layers;  // state_offload.h
  }
  absl::int128 row = KvBytesPerToken(config, need.dtype);
  absl::int128 largest = 0;
  for (const LayerConfig& layer : config.layers) {
    const absl::int128 saved = SavedRowBytes(config, need.dtype, layer.moe);
    row += absl::int128(config.hidden) * DTypeBytes(AccDType(need.dtype));  // before the layer
    if (!need.recompute) row += saved;
    largest = std::max(largest, saved);
  }
  if (need.recompute) row += largest;
  bytes.activations = need.rows * row;
  return bytes;
}

absl::Status CheckTrainingMemory(const ModelConfig& config, const TrainingNeed& need, int64_t available_bytes) {
  const TrainingBytes bytes = TrainingMemory(config, need);
  if (bytes.total() <= available_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("training needs at least %d bytes (weights in %s with %d experts a layer %d, masters, gradients "
                      "and moments %d%s, "
                      "activations of %d rows %d), the worker has %d bytes available",
                      bytes.total(), DTypeName(need.dtype), need.experts_per_layer, bytes.weights, bytes.parameters,
                      need.offload ? absl::StrFormat(" beside %d in a file", bytes.offloaded) : "", need.rows,
                      bytes.activations, std::max<int64_t>(available_bytes, 0)));
}

}  // namespace switchyard
