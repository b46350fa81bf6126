#include "workers/model/weights/weights.h"

#include <utility>

#include "scheduler/base/status_macros.h"
#include "workers/model/config/memory_plan.h"

namespace switchyard::model {
namespace {

// One run of memory for many weights.  The calls that take from it are made twice: they count first.
class Arena {
 public:
  // The next so many bytes; null while they are counted.
  char* Take(int64_t bytes) {
    char* const at = begin_ == nullptr ? nullptr : begin_ + taken_;
    taken_ += (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    return at;
  }
  int64_t taken() const { return taken_; }
  // Counting is over.
  void Begin(const Buffer& memory) {
    begin_ = static_cast<char*>(memory.data());
    taken_ = 0;
  }

 private:
  char* begin_ = nullptr;
  int64_t taken_ = 0;
};

moe::PackedExpert PackedExpertOf(const ModelConfig& config, DType dtype, const ops::LayerFormats& formats,
                                 DeviceKind device) {
  return {config.hidden, config.expert_intermediate, {dtype, formats.gate_up, formats.down}, device, config.ffn_bias};
}

struct Allocator {
  const ModelConfig& config;
  ops::WeightType type;
  Device device;
  const ExpertSpace& space;
  Arena* arena = nullptr;    // null: each has memory of its own
  bool counts = false;       // on a host: what the arena needs; experts have their own
  absl::Status status = {};  // the first error; what comes then is empty
  DType dtype = type.dtype;

  Tensor Make(DType type, Shape shape) {
    if (arena == nullptr) return Keep(Tensor::Allocate(type, shape, device));
    char* const at = arena->Take(shape.NumElements() * DTypeBytes(type));
    return at == nullptr ? Tensor() : Tensor::Over(TensorView(at, type, shape, device));
  }
  ops::Weight Make(const ops::WeightDesc& desc) {
    if (arena == nullptr) return Keep(ops::Weight::Allocate(desc, device));
    char* const at = arena->Take(ops::PackedBytes(desc, device.kind));
    return at == nullptr ? ops::Weight() : ops::Weight::Over(desc, at, /*packed=*/!device.is_cpu(), device);
  }
  Tensor Vector(int64_t n) { return Make(dtype, {n}); }
  Tensor Table(int64_t rows, int64_t columns) { return Make(dtype, {rows, columns}); }
  ops::Weight Matrix(int64_t n, int64_t k, ops::WeightFormat format = ops::WeightFormat::kPlain) {
    return Make({.n = n, .k = k, .dtype = dtype, .format = format});
  }
  // Biases of gated products lie in the weights.
  bool own_bias() const { return config.ffn_bias && ops::IsGated(config.activation); }
  FfnWeights Ffn(int64_t width, ops::WeightFormat gate_up, ops::WeightFormat down) {
    FfnWeights ffn = {
        .gate_up = Make(
            {.n = ops::SumsWidth(config.activation, width),
             .k = config.hidden,
             .dtype = dtype,
             .layout = ops::IsGated(config.activation) ? ops::WeightLayout::kGatedPanels : ops::WeightLayout::kPanels,
             .format = gate_up,
             .bias = own_bias()}),
        .down = Make({.n = config.hidden, .k = width, .dtype = dtype, .format = down, .bias = own_bias()})};
    if (config.ffn_bias && !own_bias()) {
      ffn.up_bias = Vector(width);
      ffn.down_bias = Vector(config.hidden);
    }
    return ffn;
  }
  FfnWeights DenseFfn(int64_t width, const ops::LayerFormats& formats) {
    return Ffn(width, formats.dense_gate_up, formats.dense_down);
  }
  FfnWeights OwnExpert(const ops::LayerFormats& formats) {
    return Ffn(config.expert_intermediate, formats.gate_up, formats.down);
  }
  // A LayerNorm's beta.
  Tensor NormBias() { return config.norm == NormKind::kLayer ? Vector(config.hidden) : Tensor(); }
  template <class Owner>
  Owner Keep(absl::StatusOr<Owner> owner) {
    status.Update(owner.status());
    return status.ok() ? *std::move(owner) : Owner();
  }

  AttentionWeights Attention(const ops::LayerFormats& formats) {
    AttentionWeights a;
    a.norm = Vector(config.hidden);
    a.norm_bias = NormBias();
    a.qkv = Matrix(config.qkv_width(), config.hidden, formats.qkv);
    a.o = Matrix(config.hidden, config.q_width(), formats.o);
    if (config.qkv_bias) a.qkv_bias = Vector(config.qkv_width());
    if (config.o_bias) a.o_bias = Vector(config.hidden);
    if (config.attention_sinks) a.sinks = Make(AccDType(dtype), {config.num_heads});
    if (config.qk_norm != QkNorm::kNone) {
      const bool per_head = config.qk_norm == QkNorm::kPerHead;
      a.q_norm = Vector(per_head ? config.head_dim : config.q_width());
      a.k_norm = Vector(per_head ? config.head_dim : config.kv_width());
    }
    return a;
  }

  // moe_layer: among those with experts.
  FfnWeights Expert(int moe_layer, int32_t expert, const ops::LayerFormats& formats) {
    if (space.place == nullptr) {
      Arena* const of_others = device.is_cpu() ? std::exchange(arena, nullptr) : arena;
      FfnWeights own = counts ? FfnWeights() : OwnExpert(formats);
      arena = of_others;
      return own;
    }
    SY_CHECK(ops::IsGated(config.activation));  // as CheckStorable says
    const moe::PackedExpert packed = PackedExpertOf(config, dtype, formats, space.packing);
    const Device form = {.kind = space.packing};
    char* const memory = space.place(moe_layer, expert);
    if (memory == nullptr) return {};
    return {.gate_up = ops::Weight::Over(packed.gate_up, memory, true, form),
            .down = ops::Weight::Over(packed.down, memory + packed.down_offset, true, form)};
  }

  MoeWeights Moe(int moe_layer, const std::vector<int32_t>& residents, const ops::LayerFormats& formats) {
    MoeWeights moe;
    moe.router = Make({.n = config.num_experts, .k = config.hidden, .dtype = dtype, .bias = config.router_logit_bias});
    if (config.router_bias) moe.router_bias = Make(AccDType(dtype), {config.num_experts});
    if (!space.none) {
      for (const int32_t expert : residents) moe.experts.push_back(Expert(moe_layer, expert, formats));
    }
    if (config.shared_intermediate > 0) {
      moe.shared = DenseFfn(config.shared_intermediate, formats);
      moe.shared_gate = Matrix(1, config.hidden);
    }
    return moe;
  }

  ModelWeights All(const std::vector<int32_t>& residents) {
    int num_moe_layers = 0;
    ModelWeights weights;
    if (HasEmbedding(config, type.format.head)) weights.embedding = Table(config.vocab_size, config.hidden);
    weights.lm_head = Matrix(config.vocab_size, config.hidden, type.format.head);
    if (config.learned_positions) weights.positions = Table(config.context, config.hidden);
    weights.final_norm = Vector(config.hidden);
    weights.final_norm_bias = NormBias();
    weights.layers.resize(config.layers.size());
    for (size_t i = 0; i < config.layers.size() && status.ok(); ++i) {
      LayerWeights& layer = weights.layers[i];
      const ops::LayerFormats& formats = type.format.of(i);
      layer.attention = Attention(formats);
      layer.ffn_norm = Vector(config.hidden);
      layer.ffn_norm_bias = NormBias();
      if (config.layers[i].moe) {
        layer.moe = Moe(num_moe_layers++, residents, formats);
      } else {
        layer.dense = DenseFfn(config.dense_intermediate, formats);
      }
    }
    return weights;
  }
};

int64_t FfnBytes(const FfnWeights& ffn) {
  return ffn.gate_up.bytes() + ffn.down.bytes() + ffn.up_bias.bytes() + ffn.down_bias.bytes();
}

int64_t AdapterBytes(const std::vector<AdapterWeights>& adapters) {
  int64_t bytes = 0;
  for (const AdapterWeights& each : adapters) bytes += each.a.bytes() + each.b.bytes();
  return bytes;
}

int64_t LayerBytes(const LayerWeights& layer) {
  const AttentionWeights& a = layer.attention;
  int64_t bytes = a.norm.bytes() + a.norm_bias.bytes() + a.qkv.bytes() + a.qkv_bias.bytes() + a.q_norm.bytes() +
                  a.k_norm.bytes() + a.o.bytes() + a.o_bias.bytes() + a.sinks.bytes() + layer.ffn_norm.bytes() +
                  layer.ffn_norm_bias.bytes();
  if (layer.dense.has_value()) bytes += FfnBytes(*layer.dense);
  if (!layer.moe.has_value()) return bytes;
  bytes += layer.moe->router.bytes() + layer.moe->router_bias.bytes() + layer.moe->shared_gate.bytes();
  if (layer.moe->shared.has_value()) bytes += FfnBytes(*layer.moe->shared);
  for (const FfnWeights& expert : layer.moe->experts) bytes += FfnBytes(expert);
  return bytes;
}

}  // namespace

int64_t ModelWeights::bytes() const {
  int64_t bytes =
      embedding.bytes() + positions.bytes() + final_norm.bytes() + final_norm_bias.bytes() + lm_head.bytes();
  for (const LayerWeights& layer : layers) bytes += LayerBytes(layer);
  for (const std::vector<LayerAdapter>& of_layer : adapters) {
    for (const LayerAdapter& adapter : of_layer) bytes += AdapterBytes(adapter.qkv) + AdapterBytes(adapter.o);
  }
  return bytes;
}

moe::ExpertForms ExpertFormsOf(const ModelConfig& config, const ops::WeightType& type, DeviceKind device) {
  if (type.format.layers.empty()) return PackedExpertOf(config, type.dtype, type.format.all_layers, device);
  std::vector<moe::PackedExpert> layers;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (config.layers[i].moe) layers.push_back(PackedExpertOf(config, type.dtype, type.format.of(i), device));
  }
  if (layers.empty()) return PackedExpertOf(config, type.dtype, type.format.of(0), device);
  return moe::ExpertForms(std::move(layers));
}

absl::Status CheckStorable(const ModelConfig& config) {
  if (ops::IsGated(config.activation)) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("experts of ", config.model_type,
                                               " are gelu ones with biases: each worker keeps its own as they are, "
                                               "without --expert_memory or --spare_slots"));
}

absl::StatusOr<ModelWeights> AllocateWeights(const ModelConfig& config, ops::WeightType type,
                                             std::vector<int32_t> residents, Device device, const ExpertSpace& space,
                                             bool in_arena) {
  Allocator allocate{config, type, device, space};
  Arena arena;
  Buffer memory;
  if (in_arena || !device.is_cpu()) {
    allocate.arena = &arena;
    allocate.counts = device.is_cpu();
    allocate.All(residents);
    allocate.counts = false;
    ASSIGN_OR_RETURN(memory, Buffer::Allocate(arena.taken(), device));
    arena.Begin(memory);
  }
  ModelWeights weights = allocate.All(residents);
  RETURN_IF_ERROR(allocate.status);
  weights.residents = std::move(residents);
  weights.arena = std::move(memory);
  return weights;
}

absl::StatusOr<std::vector<FfnWeights>> AllocateExperts(const ModelConfig& config, DType dtype, int64_t count,
                                                        Device device) {
  const ExpertSpace own;
  Allocator allocate{config, dtype, device, own};
  std::vector<FfnWeights> experts;
  for (int64_t i = 0; i < count; ++i) experts.push_back(allocate.OwnExpert(allocate.type.format.all_layers));
  RETURN_IF_ERROR(allocate.status);
  return experts;
}

}  // namespace switchyard::model
