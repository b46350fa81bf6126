#include "workers/model/weights/adapters.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/adapters/merged_matrix.h"

namespace switchyard::model {
namespace {

constexpr char kA[] = ".lora_A.weight", kB[] = ".lora_B.weight";

using Projection = AdaptedProjection;

std::vector<AdapterWeights>& AdaptersOf(const Projection& of, AttentionWeights* weights) {
  return of.is_out ? weights->o_adapters : weights->qkv_adapters;
}

absl::StatusOr<AdapterWeights> Allocate(const Projection& of, DType dtype, const AdapterDesc& desc) {
  AdapterWeights adapter = {.a = {}, .b = {}, .first_column = of.first_row, .scale = desc.scale, .projection = of.name};
  ASSIGN_OR_RETURN(adapter.a, ops::Weight::Allocate({.n = desc.rank, .k = of.k, .dtype = dtype}, Device::Cpu()));
  ASSIGN_OR_RETURN(adapter.b, ops::Weight::Allocate({.n = of.n, .k = desc.rank, .dtype = dtype}, Device::Cpu()));
  return adapter;
}

// A and B of a projection.
std::array<Param, 2> ParamsOf(int64_t layer_idx, absl::string_view projection, const Shape& a, const Shape& b) {
  const std::string module = absl::StrCat("base_model.model.model.layers.", layer_idx, ".self_attn.", projection);
  const auto param = [&](const char* suffix, const Shape& shape) {
    return Param{
        .name = absl::StrCat(module, suffix), .shape = {shape[0], shape[1]}, .rows = shape[0], .columns = shape[1]};
  };
  return {param(kA, a), param(kB, b)};
}

void Append(int64_t layer_idx, std::vector<AdapterWeights>* adapters, std::vector<Param>* params) {
  for (AdapterWeights& adapter : *adapters) {
    std::array<Param, 2> both =
        ParamsOf(layer_idx, adapter.projection, {adapter.a.n(), adapter.a.k()}, {adapter.b.n(), adapter.b.k()});
    both[0].weight = &adapter.a;
    both[1].weight = &adapter.b;
    params->insert(params->end(), both.begin(), both.end());
  }
}

}  // namespace

std::vector<AdaptedProjection> AdaptedProjections(const ModelConfig& c) {
  return {{"q_proj", false, 0, c.q_width(), c.hidden},
          {"k_proj", false, c.q_width(), c.kv_width(), c.hidden},
          {"v_proj", false, c.q_width() + c.kv_width(), c.kv_width(), c.hidden},
          {"o_proj", true, 0, c.hidden, c.q_width()}};
}

absl::Status AllocateAdapters(const ModelConfig& config, DType dtype, const AdapterDesc& desc, ModelWeights* weights) {
  const std::vector<Projection> projections = AdaptedProjections(config);
  for (const std::string& target : desc.targets) {
    if (std::none_of(projections.begin(), projections.end(), [&](const Projection& of) { return of.name == target; })) {
      return absl::InvalidArgumentError(absl::StrCat("adapters: ", target, " is no projection of attention"));
    }
  }
  for (LayerWeights& layer : weights->layers) {
    for (const Projection& of : projections) {
      if (std::find(desc.targets.begin(), desc.targets.end(), of.name) == desc.targets.end()) continue;
      ASSIGN_OR_RETURN(AdapterWeights adapter, Allocate(of, dtype, desc));
      AdaptersOf(of, &layer.attention).push_back(std::move(adapter));
    }
  }
  return absl::OkStatus();
}

std::vector<Param> ListAdapterParams(ModelWeights* weights) {
  std::vector<Param> params;
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    Append(static_cast<int64_t>(i), &weights->layers[i].attention.qkv_adapters, &params);
    Append(static_cast<int64_t>(i), &weights->layers[i].attention.o_adapters, &params);
  }
  return params;
}

std::vector<Param> DescribeAdapterParams(const ModelConfig& config, const AdapterDesc& desc) {
  std::vector<Param> params;
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    for (const Projection& of : AdaptedProjections(config)) {
      if (std::find(desc.targets.begin(), desc.targets.end(), of.name) == desc.targets.end()) continue;
      const std::array<Param, 2> both = ParamsOf(i, of.name, {desc.rank, of.k}, {of.n, desc.rank});
      params.insert(params.end(), both.begin(), both.end());
    }
  }
  return params;
}

absl::Status MergeAdapter(const checkpoint::LoraAdapter& adapter, const checkpoint::Checkpoint& checkpoint,
                          std::vector<Param>* params) {
  const auto wrong = [&](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat("adapter ", adapter.folder(), ": ", text...));
  };
  for (const auto& [name, matrix] : adapter.matrices()) {
    const auto param =
        std::find_if(params->begin(), params->end(), [&](const Param& each) { return each.name == name; });
    if (param != params->end() && param->shard == Shard::kExpert) {
      return absl::UnimplementedError(
          absl::StrCat("adapter ", adapter.folder(), ": it adapts ", name, "; adapters of experts are not supported"));
    }
    if (param == params->end()) return wrong("it adapts ", name, ", which is no matrix of this model");
    if (param->shape != std::vector<int64_t>{matrix.rows, matrix.columns}) {
      return wrong(name, " is [", absl::StrJoin(param->shape, ", "), "], the adapter is for [", matrix.rows, ", ",
                   matrix.columns, "]");
    }
    // (An embedding is a table of rows; a tied head is read from it, too.)
    const bool is_table = std::any_of(params->begin(), params->end(),
                                      [&](const Param& each) { return each.name == name && each.weight == nullptr; });
    if (is_table) return wrong("it adapts ", name, ", which is no matrix of products");
    param->matrix = std::make_shared<checkpoint::MergedMatrix>(name, checkpoint, param->matrix, &matrix);
  }
  return absl::OkStatus();
}

bool HasAdapters(const ModelWeights& weights) {
  return std::any_of(weights.layers.begin(), weights.layers.end(), [](const LayerWeights& layer) {
    return !layer.attention.qkv_adapters.empty() || !layer.attention.o_adapters.empty();
  });
}

bool IsAdapterA(const Param& param) { return absl::EndsWith(param.name, kA); }
bool IsAdapterB(const Param& param) { return absl::EndsWith(param.name, kB); }

}  // namespace switchyard::model
