#include "workers/model/weights/adapters.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/adapters/fused_experts.h"
#include "workers/checkpoint/adapters/merged_matrix.h"

namespace switchyard::model {
namespace {

constexpr char kA[] = ".lora_A.weight", kB[] = ".lora_B.weight";

using Projection = AdaptedProjection;

std::vector<AdapterWeights>& AdaptersOf(const Projection& of, AttentionWeights* weights) {
  return of.is_out ? weights->o_adapters : weights->qkv_adapters;
}

// A matrix of each expert that may have an adapter.
struct ExpertProjection {
  const char* name;
  int64_t n, k;
  std::optional<AdapterWeights> FfnWeights::*adapter;
};

std::vector<ExpertProjection> ExpertProjectionsOf(const ModelConfig& c) {
  return {{checkpoint::kGateUpProj, 2 * c.expert_intermediate, c.hidden, &FfnWeights::gate_up_adapter},
          {checkpoint::kDownProj, c.hidden, c.expert_intermediate, &FfnWeights::down_adapter}};
}

bool IsTarget(const AdapterDesc& desc, const char* name) {
  return std::find(desc.targets.begin(), desc.targets.end(), name) != desc.targets.end();
}

template <class OfProjection>
absl::StatusOr<AdapterWeights> Allocate(const OfProjection& of, int64_t first_row, DType dtype,
                                        const AdapterDesc& desc) {
  AdapterWeights adapter = {.a = {}, .b = {}, .first_column = first_row, .scale = desc.scale, .projection = of.name};
  ASSIGN_OR_RETURN(adapter.a, ops::Weight::Allocate({.n = desc.rank, .k = of.k, .dtype = dtype}, Device::Cpu()));
  ASSIGN_OR_RETURN(adapter.b, ops::Weight::Allocate({.n = of.n, .k = desc.rank, .dtype = dtype}, Device::Cpu()));
  return adapter;
}

// Behind "base_model.model.model.layers.0.".
std::string AttentionModule(absl::string_view projection) { return absl::StrCat("self_attn.", projection); }
std::string ExpertModule(int64_t expert, absl::string_view projection) {
  return absl::StrCat("mlp.experts.", expert, ".", projection);
}

// A and B of a projection.
std::array<Param, 2> ParamsOf(int64_t layer_idx, absl::string_view name, const Shape& a, const Shape& b) {
  const std::string module = absl::StrCat("base_model.model.model.layers.", layer_idx, ".", name);
  const auto param = [&](const char* suffix, const Shape& shape) {
    return Param{
        .name = absl::StrCat(module, suffix), .shape = {shape[0], shape[1]}, .rows = shape[0], .columns = shape[1]};
  };
  return {param(kA, a), param(kB, b)};
}

void SetExpert(int64_t layer_idx, int64_t expert, std::array<Param, 2>* both) {
  for (Param& param : *both) {
    param.shard = Shard::kExpert;
    param.layer = static_cast<int32_t>(layer_idx);
    param.expert = static_cast<int32_t>(expert);
  }
}

std::array<Param, 2> ParamsOf(int64_t layer_idx, absl::string_view name, AdapterWeights* adapter) {
  std::array<Param, 2> both =
      ParamsOf(layer_idx, name, {adapter->a.n(), adapter->a.k()}, {adapter->b.n(), adapter->b.k()});
  both[0].weight = &adapter->a;
  both[1].weight = &adapter->b;
  return both;
}

void Append(int64_t layer_idx, std::vector<AdapterWeights>* adapters, std::vector<Param>* params) {
  for (AdapterWeights& adapter : *adapters) {
    const std::array<Param, 2> both = ParamsOf(layer_idx, AttentionModule(adapter.projection), &adapter);
    params->insert(params->end(), both.begin(), both.end());
  }
}

// The trait of experts that excludes adapters; null: they may have some.
const char* TraitWithoutAdapters(const ModelConfig& config) {
  if (!ops::IsGated(config.activation)) return "GELU";
  if (config.ffn_bias) return "biases";
  return config.glu_clamp.limit != 0 ? "bounds of SwiGLU" : nullptr;
}

// Of all adapters.
absl::int128 NumElements(const ModelConfig& config, const AdapterDesc& desc) {
  absl::int128 sides = 0;  // n + k of all matrices
  for (const Projection& of : AdaptedProjections(config)) {
    if (IsTarget(desc, of.name)) sides += absl::int128(config.num_layers()) * (of.n + of.k);
  }
  for (const ExpertProjection& of : ExpertProjectionsOf(config)) {
    if (IsTarget(desc, of.name)) sides += absl::int128(config.num_moe_layers()) * config.num_experts * (of.n + of.k);
  }
  return desc.rank * sides;
}

// Of a layer's experts that this rank has.
void AppendExperts(int64_t layer_idx, const std::vector<int32_t>& residents, std::vector<FfnWeights>* experts,
                   std::vector<Param>* params) {
  for (size_t slot = 0; slot < experts->size(); ++slot) {
    for (const auto adapter : {&FfnWeights::gate_up_adapter, &FfnWeights::down_adapter}) {
      std::optional<AdapterWeights>& of = (*experts)[slot].*adapter;
      if (!of.has_value()) continue;
      std::array<Param, 2> both = ParamsOf(layer_idx, ExpertModule(residents[slot], of->projection), &*of);
      SetExpert(layer_idx, residents[slot], &both);
      params->insert(params->end(), both.begin(), both.end());
    }
  }
}

}  // namespace

std::vector<AdaptedProjection> AdaptedProjections(const ModelConfig& c) {
  return {{"q_proj", false, 0, c.q_width(), c.hidden},
          {"k_proj", false, c.q_width(), c.kv_width(), c.hidden},
          {"v_proj", false, c.q_width() + c.kv_width(), c.kv_width(), c.hidden},
          {"o_proj", true, 0, c.hidden, c.q_width()}};
}

absl::Status CheckAdapterTargets(const ModelConfig& config, const AdapterDesc& desc) {
  const std::vector<Projection> projections = AdaptedProjections(config);
  for (const std::string& target : desc.targets) {
    if (std::any_of(projections.begin(), projections.end(), [&](const Projection& of) { return of.name == target; })) {
      continue;
    }
    if (target != checkpoint::kGateUpProj && target != checkpoint::kDownProj) {
      return absl::InvalidArgumentError(absl::StrCat("lora.targets: ", target, " is no projection that has adapters"));
    }
    if (const char* const have = TraitWithoutAdapters(config)) {
      return absl::InvalidArgumentError(absl::StrCat("lora.targets: ", target, ": experts of ", config.model_type,
                                                     " have ", have,
                                                     "; adapters are for experts with SwiGLU and without biases"));
    }
  }
  const absl::int128 bytes = NumElements(config, desc) * DTypeBytes(DType::kF32);
  if (bytes <= checkpoint::kMaxAdapterBytes) return absl::OkStatus();
  const auto shown = static_cast<int64_t>(std::min<absl::int128>(bytes, std::numeric_limits<int64_t>::max()));
  return absl::InvalidArgumentError(
      absl::StrCat("lora.rank: ", desc.rank, ": adapters of ", absl::StrJoin(desc.targets, ", "), " have ", shown,
                   " bytes in fp32, a server reads at most ", checkpoint::kMaxAdapterBytes));
}

absl::Status AllocateAdapters(const ModelConfig& config, DType dtype, const AdapterDesc& desc, ModelWeights* weights) {
  RETURN_IF_ERROR(CheckAdapterTargets(config, desc));
  for (LayerWeights& layer : weights->layers) {
    for (const Projection& of : AdaptedProjections(config)) {
      if (!IsTarget(desc, of.name)) continue;
      ASSIGN_OR_RETURN(AdapterWeights adapter, Allocate(of, of.first_row, dtype, desc));
      AdaptersOf(of, &layer.attention).push_back(std::move(adapter));
    }
    if (!layer.moe.has_value()) continue;
    for (const ExpertProjection& of : ExpertProjectionsOf(config)) {
      if (!IsTarget(desc, of.name)) continue;
      for (FfnWeights& expert : layer.moe->experts) {
        ASSIGN_OR_RETURN(expert.*of.adapter, Allocate(of, /*first_row=*/0, dtype, desc));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<Param> ListAdapterParams(ModelWeights* weights) {
  std::vector<Param> params;
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    Append(static_cast<int64_t>(i), &weights->layers[i].attention.qkv_adapters, &params);
    Append(static_cast<int64_t>(i), &weights->layers[i].attention.o_adapters, &params);
    if (!weights->layers[i].moe.has_value()) continue;
    AppendExperts(static_cast<int64_t>(i), weights->residents, &weights->layers[i].moe->experts, &params);
  }
  return params;
}

std::vector<Param> DescribeAdapterParams(const ModelConfig& config, const AdapterDesc& desc) {
  std::vector<Param> params;
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    for (const Projection& of : AdaptedProjections(config)) {
      if (!IsTarget(desc, of.name)) continue;
      const std::array<Param, 2> both = ParamsOf(i, AttentionModule(of.name), {desc.rank, of.k}, {of.n, desc.rank});
      params.insert(params.end(), both.begin(), both.end());
    }
    for (int64_t e = 0; e < (config.layers[i].moe ? config.num_experts : 0); ++e) {
      for (const ExpertProjection& of : ExpertProjectionsOf(config)) {
        if (!IsTarget(desc, of.name)) continue;
        std::array<Param, 2> both = ParamsOf(i, ExpertModule(e, of.name), {desc.rank, of.k}, {of.n, desc.rank});
        SetExpert(i, e, &both);
        params.insert(params.end(), both.begin(), both.end());
      }
    }
  }
  return params;
}

namespace {

// Merges into a param, of which it is the adapter's by name or as an expert's.
class Merge {
 public:
  Merge(const checkpoint::LoraAdapter& adapter, const checkpoint::Checkpoint& checkpoint)
      : adapter_(adapter), checkpoint_(checkpoint) {}

  absl::Status Into(Param* param) {
    RETURN_IF_ERROR(ByName(param));
    return param->shard == Shard::kExpert && param->weight != nullptr ? AsExpert(param) : absl::OkStatus();
  }

  // Whether some param was a matrix's.
  bool Has(const std::string& matrix) const { return merged_.count(matrix) == 1; }
  template <class... Text>
  absl::Status Wrong(const Text&... text) const {
    return absl::InvalidArgumentError(absl::StrCat("adapter ", adapter_.folder(), ": ", text...));
  }

  // Fused experts are adapted in all layers or in none: PEFT's target_parameters do not choose among them.
  absl::Status OfAllLayers(const ModelConfig& config, const char* projection) const {
    if (adapter_.num_experts() == 0) return absl::OkStatus();
    std::string with, without;
    for (int64_t i = 0; i < config.num_layers(); ++i) {
      if (!config.layers[static_cast<size_t>(i)].moe) continue;
      const std::string layer = absl::StrCat("model.layers.", i);
      const bool has = adapter_.matrices().contains(checkpoint::ExpertMatrixName(layer, 0, projection));
      (has ? with : without) = layer;
    }
    if (with.empty() || without.empty()) return absl::OkStatus();
    return Wrong("it has adapters of experts' ", projection, " of ", with, ", and none of ", without);
  }

 private:
  absl::Status ByName(Param* param) {
    const auto found = adapter_.matrices().find(param->name);
    if (found == adapter_.matrices().end()) return absl::OkStatus();
    const checkpoint::AdaptedMatrix& matrix = found->second;
    if (param->shape != std::vector<int64_t>{matrix.rows, matrix.columns}) {
      return Wrong(param->name, " is [", absl::StrJoin(param->shape, ", "), "], the adapter is for [", matrix.rows,
                   ", ", matrix.columns, "]");
    }
    // (An embedding is a table of rows; a tied head is read from it, too.)
    if (param->weight == nullptr) return Wrong("it adapts ", param->name, ", which is no matrix of products");
    merged_.insert(found->first);
    param->matrix =
        std::make_shared<checkpoint::MergedMatrix>(param->name, checkpoint_, param->matrix, &matrix, matrix.rows);
    return absl::OkStatus();
  }

  // Rows of an expert's matrix of fused_experts.h.
  absl::Status AsExpert(Param* param) {
    const bool gate_up = param->weight->gated();
    const auto found = adapter_.matrices().find(
        checkpoint::ExpertMatrixName(absl::StrCat("model.layers.", param->layer), param->expert,
                                     gate_up ? checkpoint::kGateUpProj : checkpoint::kDownProj));
    if (found == adapter_.matrices().end()) return absl::OkStatus();
    const checkpoint::AdaptedMatrix& matrix = found->second;
    const ops::Weight& weight = *param->weight;
    if (matrix.rows != weight.n() || matrix.columns != weight.k()) {
      return Wrong(found->first, " is [", weight.n(), ", ", weight.k(), "], the adapter is for [", matrix.rows, ", ",
                   matrix.columns, "]");
    }
    if (param->transposed || param->interleaved || param->bias) {
      return absl::UnimplementedError(absl::StrCat("adapter ", adapter_.folder(), ": it adapts ", found->first,
                                                   "; experts with biases have no adapters here"));
    }
    merged_.insert(found->first);
    int64_t rows = 1;  // of the checkpoint's tensor
    for (size_t i = 0; i + 1 < param->shape.size(); ++i) rows *= param->shape[i];
    param->matrix = std::make_shared<checkpoint::MergedMatrix>(param->name, checkpoint_, param->matrix, &matrix, rows,
                                                               param->source_row - param->first_row);
    return absl::OkStatus();
  }

  const checkpoint::LoraAdapter& adapter_;
  const checkpoint::Checkpoint& checkpoint_;
  std::set<std::string> merged_;
};

}  // namespace

absl::Status MergeAdapter(const ModelConfig& config, const checkpoint::LoraAdapter& adapter,
                          const checkpoint::Checkpoint& checkpoint, std::vector<Param>* params, bool some) {
  Merge merge(adapter, checkpoint);
  // (Of fewer experts each would fit one of the model's, and leave the rest as they are.)
  if (adapter.num_experts() != 0 && adapter.num_experts() != config.num_experts) {
    return merge.Wrong("its lora_A of experts is of ", adapter.num_experts(),
                       " experts (rows by r in adapter_config.json), the model has ", config.num_experts);
  }
  for (const char* projection : {checkpoint::kGateUpProj, checkpoint::kDownProj}) {
    RETURN_IF_ERROR(merge.OfAllLayers(config, projection));
  }
  for (Param& param : *params) RETURN_IF_ERROR(merge.Into(&param));
  for (const auto& [name, matrix] : adapter.matrices()) {
    if (some || merge.Has(name)) continue;
    return merge.Wrong("it adapts ", name, ", which is no matrix of this model");
  }
  return absl::OkStatus();
}

bool HasAdapters(const ModelWeights& weights) {
  const auto of_expert = [](const FfnWeights& expert) {
    return expert.gate_up_adapter.has_value() || expert.down_adapter.has_value();
  };
  return std::any_of(weights.layers.begin(), weights.layers.end(), [&](const LayerWeights& layer) {
    return !layer.attention.qkv_adapters.empty() || !layer.attention.o_adapters.empty() ||
           (layer.moe.has_value() && std::any_of(layer.moe->experts.begin(), layer.moe->experts.end(), of_expert));
  });
}

bool IsAdapterA(const Param& param) { return absl::EndsWith(param.name, kA); }
bool IsAdapterB(const Param& param) { return absl::EndsWith(param.name, kB); }

}  // namespace switchyard::model
