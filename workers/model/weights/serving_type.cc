#include "workers/model/weights/serving_type.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/text/quote.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"

namespace switchyard::model {
namespace {

// What tensors have in common.
class CommonFormat {
 public:
  void Add(const Param& param) {
    const checkpoint::MatrixReader* const matrix = param.matrix.get();
    const ops::WeightFormat own = matrix != nullptr ? matrix->own_format() : ops::WeightFormat::kPlain;
    const ops::WeightFormat near = matrix != nullptr ? matrix->near_format() : ops::WeightFormat::kPlain;
    alike_ &= own_.value_or(own) == own;
    own_ = own;
    near_ &= near != ops::WeightFormat::kPlain;
    in_six_bits_ &= near == ops::WeightFormat::kQ6_K;
  }
  bool empty() const { return !own_.has_value(); }
  ops::WeightFormat Get() const {
    if (empty()) return ops::WeightFormat::kPlain;
    if (alike_ && *own_ != ops::WeightFormat::kPlain) return *own_;
    if (!near_) return ops::WeightFormat::kPlain;
    return in_six_bits_ ? ops::WeightFormat::kQ6_K : ops::WeightFormat::kQ8_0;
  }

 private:
  std::optional<ops::WeightFormat> own_;  // of the last one
  bool alike_ = true, near_ = true, in_six_bits_ = true;
};

// As ops::LayerFormats.
struct LayerCommon {
  CommonFormat qkv, o, dense_gate_up, dense_down, gate_up, down;
};

struct Kind {
  using Format = ops::WeightFormat ops::LayerFormats::*;
  CommonFormat LayerCommon::*common;
  Format format, instead;  // instead: of a kind before it, where no layer has this one
};
using Formats = ops::LayerFormats;
constexpr Kind kKinds[] = {{&LayerCommon::qkv, &Formats::qkv, &Formats::qkv},
                           {&LayerCommon::o, &Formats::o, &Formats::qkv},
                           {&LayerCommon::dense_gate_up, &Formats::dense_gate_up, &Formats::qkv},
                           {&LayerCommon::dense_down, &Formats::dense_down, &Formats::o},
                           {&LayerCommon::gate_up, &Formats::gate_up, &Formats::dense_gate_up},
                           {&LayerCommon::down, &Formats::down, &Formats::dense_down}};

using Places = absl::flat_hash_map<const ops::Weight*, CommonFormat*>;

// All but routers and the gates of shared experts, which stay plain.
void AddPlaces(const LayerWeights& layer, LayerCommon* common, Places* places) {
  places->insert({{&layer.attention.qkv, &common->qkv}, {&layer.attention.o, &common->o}});
  const auto add_dense = [&](const FfnWeights& ffn) {
    places->insert({{&ffn.gate_up, &common->dense_gate_up}, {&ffn.down, &common->dense_down}});
  };
  if (layer.dense.has_value()) add_dense(*layer.dense);
  if (!layer.moe.has_value()) return;
  if (layer.moe->shared.has_value()) add_dense(*layer.moe->shared);
  for (const FfnWeights& expert : layer.moe->experts) {
    places->insert({{&expert.gate_up, &common->gate_up}, {&expert.down, &common->down}});
  }
}

}  // namespace

ops::WeightFormats StoredFormats(const std::vector<Param>& params, const ModelWeights& weights) {
  CommonFormat head;
  std::vector<LayerCommon> layers(weights.layers.size());
  Places places = {{&weights.lm_head, &head}};
  for (size_t i = 0; i < layers.size(); ++i) AddPlaces(weights.layers[i], &layers[i], &places);
  for (const Param& param : params) {
    if (param.weight == nullptr || param.bias) continue;
    if (const auto it = places.find(param.weight); it != places.end()) it->second->Add(param);
  }
  ops::WeightFormats formats;
  formats.head = ops::HeadFormat(head.Get());
  formats.layers.resize(layers.size());
  for (const auto& [common, format, instead] : kKinds) {
    // A layer without this kind of matrices has the format of one that has some, or of another kind, so that layers may
    // be alike.
    const auto any = std::find_if(layers.begin(), layers.end(),
                                  [common = common](const LayerCommon& layer) { return !(layer.*common).empty(); });
    for (size_t i = 0; i < layers.size(); ++i) {
      ops::LayerFormats& of = formats.layers[i];
      const LayerCommon* const from = !(layers[i].*common).empty() ? &layers[i] : any != layers.end() ? &*any : nullptr;
      of.*format = from != nullptr ? (from->*common).Get() : of.*instead;
    }
  }
  const auto alike = [&](const ops::LayerFormats& layer) { return layer == formats.layers.front(); };
  if (!formats.layers.empty() && std::all_of(formats.layers.begin(), formats.layers.end(), alike)) {
    formats.all_layers = formats.layers.front();
    formats.layers.clear();
  }
  return formats;
}

absl::StatusOr<DType> NamedDType(absl::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype \"", Excerpt(name), "\": expected auto, fp32, bf16, fp16 or fp64"));
}

absl::StatusOr<DType> ServingDType(absl::string_view name, const ModelConfig& config,
                                   const checkpoint::Checkpoint& checkpoint) {
  if (name != "auto") return NamedDType(name);
  if (config.file_dtype.has_value()) return *config.file_dtype;
  constexpr char kEmbedding[] = "model.embed_tokens.weight";
  const checkpoint::TensorLocation embedding = checkpoint.Find(kEmbedding);
  if (config.quantization.has_value() && checkpoint::HasMatrix(checkpoint, kEmbedding)) {
    const absl::StatusOr<DType> dtype =
        embedding.file == nullptr ? DType::kBf16 : checkpoint::ParseSafetensorsDType(embedding.entry->dtype);
    return dtype.ok() && IsFloating(*dtype) ? *dtype : DType::kBf16;
  }
  if (embedding.file == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", kEmbedding, "\" is missing"));
  return checkpoint::ParseSafetensorsDType(embedding.entry->dtype);
}

}  // namespace switchyard::model
