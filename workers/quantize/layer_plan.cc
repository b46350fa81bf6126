#include "workers/quantize/layer_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/model/families/family.h"

namespace switchyard::quantize {
namespace {

bool IsQuantized(const model::Param& param, const model::LayerWeights& layer) {
  if (param.weight == nullptr || param.bias) return false;
  return !layer.moe.has_value() || (param.weight != &layer.moe->router && param.weight != &layer.moe->shared_gate);
}

bool SamePlace(const model::Param& a, const model::Param& b) {
  return a.weight == b.weight && a.tensor == b.tensor && a.bias == b.bias;
}

// The param of the checkpoint that has the rows of one that is written.
const model::Param& SourceOf(const model::Param& target, const std::vector<model::Param>& sources) {
  const auto found = std::find_if(sources.begin(), sources.end(), [&](const model::Param& source) {
    return SamePlace(source, target) && source.first_row <= target.first_row &&
           target.first_row + target.rows <= source.first_row + source.rows;
  });
  SY_CHECK(found != sources.end());
  return *found;
}

std::string ModuleOf(absl::string_view name) { return std::string(absl::StripSuffix(name, ".weight")); }

}  // namespace

absl::Status Linear::Read(int64_t first, int64_t count, float* to) const {
  const int64_t row_bytes = columns * DTypeBytes(dtype);
  std::vector<char> bytes(static_cast<size_t>(count * row_bytes));
  RETURN_IF_ERROR(at.file->Read(at.entry->begin + (source_row + first) * row_bytes, static_cast<int64_t>(bytes.size()),
                                bytes.data()));
  return VisitDType(dtype, [&]<class Elem>() -> absl::Status {
    const Elem* const from = reinterpret_cast<const Elem*>(bytes.data());
    for (int64_t i = 0; i < count * columns; ++i) {
      to[i] = static_cast<float>(static_cast<Acc<Elem>>(from[i]));
      if (std::isfinite(to[i])) continue;
      return absl::InvalidArgumentError(absl::StrCat(at.file->name(), ": tensor \"", source,
                                                     "\": expected finite values of fp32, found ", to[i], " at row ",
                                                     source_row + first + i / columns, ", column ", i % columns));
    }
    return absl::OkStatus();
  });
}

model::ModelConfig OneLayer(const model::ModelConfig& config, int64_t layer_idx) {
  model::ModelConfig one = config;
  one.layers = {config.layers[static_cast<size_t>(layer_idx)]};
  one.vocab_size = 1;
  one.tie_embeddings = true;
  return one;
}

std::vector<int32_t> AllExperts(const model::ModelConfig& config) {
  std::vector<int32_t> experts(static_cast<size_t>(config.num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  return experts;
}

absl::StatusOr<LayerPlan> PlanLayer(const model::ModelConfig& config, const checkpoint::Checkpoint& checkpoint,
                                    const GroupFormat& format, int64_t layer_idx, model::LayerWeights* layer) {
  const model::ModelFamily& family = *model::FindFamily(config.model_type);
  const std::vector<int32_t> experts = AllExperts(config);
  ASSIGN_OR_RETURN(const std::vector<model::Param> sources,
                   model::BuildLayerParams(config, family, &checkpoint, layer_idx, experts, layer));
  ASSIGN_OR_RETURN(const std::vector<model::Param> targets,
                   model::BuildLayerParams(config, family, nullptr, layer_idx, experts, layer));
  const bool fused = sources.size() != targets.size();
  LayerPlan plan;
  for (const model::Param& target : targets) {
    const model::Param& source = SourceOf(target, sources);
    // Beside experts that were not fused, names stay as they are.
    const std::string& name = fused ? target.name : source.name;
    if (!IsQuantized(target, *layer)) {
      if (target.weight != nullptr && !target.bias) plan.plain_modules.push_back(ModuleOf(name));
      if (name != source.name) plan.renamed[source.name] = name;
      continue;
    }
    if (target.columns % format.group != 0) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", source.name, "\": groups of ", format.group,
                                                     " columns do not divide its ", target.columns,
                                                     " columns; give --group_size=N that does"));
    }
    const checkpoint::TensorLocation at = checkpoint.Find(source.name);
    plan.linears.push_back({.name = name,
                            .source = source.name,
                            .at = at,
                            .dtype = *checkpoint::ParseSafetensorsDType(at.entry->dtype),
                            .source_row = source.source_row + target.first_row - source.first_row,
                            .rows = target.rows,
                            .columns = target.columns,
                            .expert = target.expert,
                            .weight = target.weight,
                            .first_row = target.first_row});
  }
  return plan;
}

absl::Status CheckQuantizable(const model::ModelConfig& config) {
  if (config.quantization.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("the model is quantized already (", config.quantization->ToString(),
                                                   "); quantize its bf16, fp16 or fp32 checkpoint"));
  }
  if (model::FindFamily(config.model_type)->moe.fused_transposed) {
    return absl::UnimplementedError(absl::StrCat(
        config.model_type,
        ": its experts are fused and have biases, which no reader knows as compressed-tensors; the model is published "
        "in MXFP4, and `switchyard-server --quantization=int4` quantizes it at load"));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::quantize
