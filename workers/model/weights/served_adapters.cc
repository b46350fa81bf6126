#include "workers/model/weights/served_adapters.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/weights/adapters.h"
#include "workers/model/weights/unfit_values.h"

namespace switchyard::model {
namespace {

// "model.layers.3.self_attn.q_proj.weight" as layer and projection; projection is null for other names.
struct AdaptedPlace {
  int64_t layer_idx = 0;
  const AdaptedProjection* projection = nullptr;
};

AdaptedPlace PlaceOf(absl::string_view name, const std::vector<AdaptedProjection>& projections) {
  AdaptedPlace place;
  if (!absl::ConsumePrefix(&name, "model.layers.") || !absl::ConsumeSuffix(&name, ".weight")) return {};
  const absl::string_view layer = name.substr(0, name.find('.'));
  if (!absl::SimpleAtoi(layer, &place.layer_idx) || absl::StrCat(place.layer_idx) != layer) return {};
  name.remove_prefix(layer.size());
  if (!absl::ConsumePrefix(&name, ".self_attn.")) return {};
  for (const AdaptedProjection& each : projections) {
    if (name == each.name) place.projection = &each;
  }
  return place;
}

absl::Status CheckMatrix(const std::string& name, const checkpoint::AdaptedMatrix& matrix, const ModelConfig& config,
                         DType dtype) {
  const std::vector<AdaptedProjection> projections = AdaptedProjections(config);
  const AdaptedPlace place = PlaceOf(name, projections);
  if (place.projection == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("it adapts ", name,
                     "; of adapters that requests choose from only q_proj, k_proj, v_proj and o_proj of self_attn "
                     "are supported (--adapter merges one that adapts other matrices, too)"));
  }
  if (place.layer_idx < 0 || place.layer_idx >= config.num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it adapts ", name, ", the model has ", config.num_layers(), " layers"));
  }
  const AdaptedProjection& of = *place.projection;
  if (matrix.rows != of.n || matrix.columns != of.k) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is [", of.n, ", ", of.k, "], the adapter is for [",
                                                   matrix.rows, ", ", matrix.columns, "]"));
  }
  if (const DType sums = AccDType(dtype); !(std::abs(matrix.scale) <= LargestOf(sums))) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": its scale, of lora_alpha and r, is ", matrix.scale,
                                                   ", which ", DTypeName(sums), " cannot hold"));
  }
  for (const std::vector<float>* values : {&matrix.a, &matrix.b}) {
    const int64_t unfit = FindUnfit(values->data(), static_cast<int64_t>(values->size()), LargestOf(dtype));
    if (unfit < 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, ": its ", values == &matrix.a ? "lora_A" : "lora_B", " has ",
                                                   (*values)[static_cast<size_t>(unfit)], ", which ", DTypeName(dtype),
                                                   " cannot hold; use --dtype=bf16 or fp32"));
  }
  return absl::OkStatus();
}

// A [r, k] or B [n, r].
ops::WeightDesc DescOf(int64_t n, int64_t k, DType dtype) { return {.n = n, .k = k, .dtype = dtype}; }

absl::StatusOr<ops::Weight> Pack(const ops::WeightDesc& desc, const std::vector<float>& values) {
  ASSIGN_OR_RETURN(ops::Weight weight, ops::Weight::Allocate(desc, Device::Cpu()));
  // (A view does not change what it shows.)
  const TensorView rows(const_cast<float*>(values.data()), DType::kF32, {desc.n, desc.k});
  RETURN_IF_ERROR(weight.PackRows(0, rows));
  return weight;
}

}  // namespace

absl::Status CheckServedAdapter(const ModelConfig& config, DType dtype, const checkpoint::LoraAdapter& adapter) {
  for (const auto& [name, matrix] : adapter.matrices()) RETURN_IF_ERROR(CheckMatrix(name, matrix, config, dtype));
  return absl::OkStatus();
}

int64_t ServedAdapterBytes(DType dtype, const checkpoint::LoraAdapter& adapter) {
  int64_t bytes = 0;
  for (const auto& [name, matrix] : adapter.matrices()) {
    bytes += ops::PackedBytes(DescOf(matrix.rank, matrix.columns, dtype)) +
             ops::PackedBytes(DescOf(matrix.rows, matrix.rank, dtype));
  }
  return bytes;
}

absl::StatusOr<std::vector<LayerAdapter>> PackServedAdapter(const ModelConfig& config, DType dtype,
                                                            const checkpoint::LoraAdapter& adapter) {
  const std::vector<AdaptedProjection> projections = AdaptedProjections(config);
  std::vector<LayerAdapter> layers(static_cast<size_t>(config.num_layers()));
  for (const auto& [name, matrix] : adapter.matrices()) {
    const AdaptedPlace place = PlaceOf(name, projections);
    const AdaptedProjection& of = *place.projection;
    AdapterWeights made = {
        .a = {}, .b = {}, .first_column = of.first_row, .scale = matrix.scale, .projection = of.name};
    ASSIGN_OR_RETURN(made.a, Pack(DescOf(matrix.rank, matrix.columns, dtype), matrix.a));
    ASSIGN_OR_RETURN(made.b, Pack(DescOf(matrix.rows, matrix.rank, dtype), matrix.b));
    LayerAdapter& layer = layers[static_cast<size_t>(place.layer_idx)];
    (of.is_out ? layer.o : layer.qkv).push_back(std::move(made));
  }
  return layers;
}

}  // namespace switchyard::model
