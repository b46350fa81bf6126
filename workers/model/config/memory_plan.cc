#include "workers/model/config/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {
namespace {

// What weights take.
struct Sizes {
  const ModelConfig& c;
  ops::WeightType type;
  DeviceKind device;
  DType dtype = type.dtype;

  absl::int128 Aligned(absl::int128 bytes) const {
    if (device == DeviceKind::kCpu) return bytes;
    return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
  }
  absl::int128 Elements(absl::int128 count, DType type) const { return Aligned(count * DTypeBytes(type)); }
  absl::int128 Vector(absl::int128 count) const { return Elements(count, dtype); }
  absl::int128 Matrix(int64_t n, int64_t k, ops::WeightFormat format = ops::WeightFormat::kPlain, bool gated = false,
                      bool bias = false) const {
    if (device != DeviceKind::kCpu) return OnDevice(n, k, format, gated, bias);
    const absl::int128 biases = bias ? Vector(n) : 0;
    if (format == ops::WeightFormat::kPlain) return Vector(absl::int128(n) * k) + biases;
    return absl::int128(n) * (Panel(k, format) / ops::kPanelColumns) + biases;
  }
  int64_t Panel(int64_t k, ops::WeightFormat format) const {
    return ops::PackedBytes({.n = ops::kPanelColumns, .k = k, .dtype = dtype, .format = format});
  }
  // As ops::PackedBytes says, without its bound on sizes.
  absl::int128 OnDevice(int64_t n, int64_t k, ops::WeightFormat format, bool gated, bool bias) const {
    const absl::int128 biases = bias ? (absl::int128(n) * DTypeBytes(dtype) + 63) / 64 * 64 : 0;
    if (format == ops::WeightFormat::kPlain) {
      return Aligned(absl::int128(n) * ops::PackedBytes({.n = 1, .k = k, .dtype = dtype}, device) + biases);
    }
    const int64_t parts = gated ? 2 : 1, panels = parts * ((n / parts + ops::kPanelColumns - 1) / ops::kPanelColumns);
    return Aligned(absl::int128(panels) * Panel(k, format) + biases);
  }
  absl::int128 Norm() const { return (c.norm == NormKind::kLayer ? 2 : 1) * Vector(c.hidden); }
  // With the layer's norms.
  absl::int128 Attention(const ops::LayerFormats& formats) const {
    absl::int128 bytes = Matrix(c.qkv_width(), c.hidden, formats.qkv) + Matrix(c.hidden, c.q_width(), formats.o);
    if (c.qkv_bias) bytes += Vector(c.qkv_width());
    if (c.o_bias) bytes += Vector(c.hidden);
    if (c.attention_sinks) bytes += Elements(c.num_heads, AccDType(dtype));
    if (c.qk_norm == QkNorm::kPerHead) bytes += 2 * Vector(c.head_dim);
    if (c.qk_norm == QkNorm::kWholeRow) bytes += Vector(c.q_width()) + Vector(c.kv_width());
    return bytes + 2 * Norm();
  }
  absl::int128 Ffn(int64_t width, ops::WeightFormat gate_up, ops::WeightFormat down) const {
    const bool gated = ops::IsGated(c.activation), own_bias = gated && c.ffn_bias;
    const absl::int128 bytes = Matrix(ops::SumsWidth(c.activation, width), c.hidden, gate_up, gated, own_bias) +
                               Matrix(c.hidden, width, down, false, own_bias);
    return c.ffn_bias && !own_bias ? bytes + Vector(width) + Vector(c.hidden) : bytes;
  }
  absl::int128 DenseFfn(int64_t width, const ops::LayerFormats& formats) const {
    return Ffn(width, formats.dense_gate_up, formats.dense_down);
  }
  absl::int128 Expert(const ops::LayerFormats& formats) const {
    return Ffn(c.expert_intermediate, formats.gate_up, formats.down);
  }
  absl::int128 Moe(int64_t experts, const ops::LayerFormats& formats) const {
    absl::int128 bytes = Matrix(c.num_experts, c.hidden, ops::WeightFormat::kPlain, false, c.router_logit_bias) +
                         experts * Expert(formats);
    if (c.router_bias) bytes += Elements(c.num_experts, AccDType(dtype));
    if (c.shared_intermediate > 0) bytes += DenseFfn(c.shared_intermediate, formats) + Matrix(1, c.hidden);
    return bytes;
  }
  absl::int128 Layer(bool moe, int64_t experts, const ops::LayerFormats& formats) const {
    return Attention(formats) + (moe ? Moe(experts, formats) : DenseFfn(c.dense_intermediate, formats));
  }
  // Of all layers.  Where they are alike it takes no time to speak of, however many there are.
  absl::int128 Layers(int64_t experts) const {
    const ops::WeightFormats& formats = type.format;
    absl::int128 bytes = 0;
    if (formats.layers.empty()) {
      const int64_t num_moe = c.num_moe_layers(), num_dense = c.num_layers() - num_moe;
      if (num_moe > 0) bytes += num_moe * Layer(true, experts, formats.all_layers);
      if (num_dense > 0) bytes += num_dense * Layer(false, experts, formats.all_layers);
      return bytes;
    }
    for (size_t i = 0; i < formats.layers.size(); ++i) bytes += Layer(c.layers[i].moe, experts, formats.layers[i]);
    return bytes;
  }
  // Where any layer's expert may be.
  absl::int128 ExpertSlot() const {
    if (type.format.layers.empty()) return Expert(type.format.all_layers);
    absl::int128 most = 0;
    for (size_t i = 0; i < type.format.layers.size(); ++i) {
      if (c.layers[i].moe) most = std::max(most, Expert(type.format.layers[i]));
    }
    return most;
  }
};

}  // namespace

bool HasEmbedding(const ModelConfig& config, ops::WeightFormat head) {
  return !config.tie_embeddings || head != ops::WeightFormat::kPlain;
}

int64_t KvBytesPerToken(const ModelConfig& config, DType dtype, ops::KvFormat format) {
  const bool plain = format == ops::KvFormat::kPlain;
  const int64_t head_bytes = plain ? config.head_dim * DTypeBytes(dtype) : config.head_dim + ops::kKvScaleBytes;
  return 2 * config.num_kv_heads * head_bytes * config.num_layers();
}

absl::int128 WeightBytes(const ModelConfig& config, ops::WeightType type, int64_t experts_per_layer,
                         DeviceKind device) {
  const Sizes sizes = {config, type, device};
  // lm_head and the last norm
  absl::int128 bytes = sizes.Matrix(config.vocab_size, config.hidden, type.format.head) + sizes.Norm();
  if (HasEmbedding(config, type.format.head)) bytes += sizes.Vector(absl::int128(config.vocab_size) * config.hidden);
  if (config.learned_positions) bytes += sizes.Vector(absl::int128(config.context) * config.hidden);
  return bytes + sizes.Layers(experts_per_layer);
}

absl::int128 RopeTableBytes(const ModelConfig& config, DType dtype, int64_t positions, DeviceKind device) {
  if (config.learned_positions) return 0;
  const absl::int128 rows = absl::int128(positions) + config.rope.LongAbove(positions);
  return 2 * Sizes{config, dtype, device}.Elements(rows * (config.rope.rotary_dim / 2), AccDType(dtype));
}

absl::int128 MemoryBytes(const ModelConfig& config, const MemoryNeed& need) {
  const bool store = need.expert_slots >= 0;
  const absl::int128 slots = store ? need.expert_slots * Sizes{config, need.type(), need.device}.ExpertSlot() : 0;
  return WeightBytes(config, need.type(), store ? 0 : need.experts_per_layer, need.device) + slots +
         need.adapter_bytes + RopeTableBytes(config, need.dtype, need.positions, need.device) + need.kv_cache_bytes;
}

absl::Status CheckMemory(const ModelConfig& config, const MemoryNeed& need, int64_t worker_bytes,
                         absl::string_view why) {
  const absl::int128 total = MemoryBytes(config, need);
  if (total <= worker_bytes) return absl::OkStatus();
  const std::string experts = need.expert_slots >= 0 ? absl::StrFormat("%d experts at a time", need.expert_slots)
                                                     : absl::StrFormat("%d experts a layer", need.experts_per_layer);
  const std::string adapters = need.adapter_bytes > 0 ? absl::StrFormat(", adapters %d bytes", need.adapter_bytes) : "";
  const absl::int128 rope_bytes = RopeTableBytes(config, need.dtype, need.positions, need.device);
  const std::string rope =
      rope_bytes > 0 ? absl::StrFormat(", RoPE table of %d positions %d bytes", need.positions, rope_bytes) : "";
  return absl::ResourceExhaustedError(absl::StrFormat(
      "config needs %d bytes (weights in %s with %s%s%s, KV cache %d bytes), worker has %d bytes available%s", total,
      ops::ToString(need.type()), experts, adapters, rope, need.kv_cache_bytes, std::max<int64_t>(worker_bytes, 0),
      why));
}

absl::Status CheckKvCapacity(const KvCapacity& room) {
  const int64_t block_bytes = room.token_bytes * room.block_size;
  if (room.available >= block_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("KV cache: needed at least %d bytes (a block of %d tokens), available %d bytes of %s",
                      block_bytes, room.block_size, std::max<int64_t>(room.available, 0), room.limit));
}

}  // namespace switchyard::model
