#include "workers/train/parameters/parameter_rules.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/params.h"

namespace switchyard::train {
namespace {

constexpr int64_t kMostExperts = 1 << 20;

absl::Status CheckFits(absl::Span<const jobs::ParameterRule> rules, const std::vector<model::Param>& params) {
  for (size_t i = 0; i < rules.size(); ++i) {
    const auto fits = [&](const model::Param& param) { return FitsPattern(rules[i].pattern, param.name); };
    if (std::any_of(params.begin(), params.end(), fits)) continue;
    return absl::InvalidArgumentError(absl::StrCat("parameters[", i, "]: \"", rules[i].pattern, "\" fits no weight of ",
                                                   params.size(), ", which have names such as ", params.front().name,
                                                   " and ", params[params.size() / 2].name));
  }
  return absl::OkStatus();
}

// Those that rules are about.
absl::StatusOr<std::vector<model::Param>> ParamsOf(const jobs::JobSpec& spec, const model::ModelConfig& config) {
  if (spec.lora.rank > 0) return model::DescribeAdapterParams(config, AdaptersOf(spec.lora));
  const absl::int128 experts = absl::int128(config.num_moe_layers()) * config.num_experts;
  if (experts > kMostExperts) {
    return absl::InvalidArgumentError(
        absl::StrFormat("parameters: rules for a model of %d experts in all, at most %d", experts, kMostExperts));
  }
  const model::ModelFamily* const family = model::FindFamily(config.model_type);
  SY_CHECK(family != nullptr);
  return model::DescribeParams(config, *family);
}

}  // namespace

// Where a * fits more or less, the last one decides: what an earlier one could have is tried by none again.
bool FitsPattern(absl::string_view pattern, absl::string_view name) {
  size_t p = 0, n = 0, star = absl::string_view::npos, from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

const jobs::ParameterRule* RuleFor(absl::Span<const jobs::ParameterRule> rules, absl::string_view name) {
  for (const jobs::ParameterRule& rule : rules) {
    if (FitsPattern(rule.pattern, name)) return &rule;
  }
  return nullptr;
}

model::AdapterDesc AdaptersOf(const jobs::LoraSpec& lora) {
  if (lora.rank == 0) return {};
  model::AdapterDesc desc = {.rank = lora.rank, .scale = lora.scale(), .targets = lora.targets};
  if (desc.targets.empty()) desc.targets.assign(std::begin(jobs::kLoraTargets), std::end(jobs::kLoraTargets));
  return desc;
}

absl::StatusOr<TrainedElements> CountTrained(const jobs::JobSpec& spec, const model::ModelConfig& config) {
  const bool adapted = spec.lora.rank > 0;
  if (!adapted && spec.parameters.empty()) return TrainedElements();
  ASSIGN_OR_RETURN(const std::vector<model::Param> params, ParamsOf(spec, config));
  RETURN_IF_ERROR(CheckFits(spec.parameters, params));
  TrainedElements elements;
  bool trains = false;
  for (const model::Param& param : params) {
    const jobs::ParameterRule* const rule = RuleFor(spec.parameters, param.name);
    const absl::int128 count = absl::int128(param.rows) * param.columns;
    const bool frozen = rule != nullptr && rule->frozen;
    trains |= !frozen && !param.router_bias;
    if (adapted) {
      elements.adapters += count;
    } else if (frozen) {
      (param.shard == model::Shard::kExpert ? elements.frozen_experts : elements.frozen_dense) += count;
    }
  }
  if (!trains) return absl::InvalidArgumentError("parameters: all weights are frozen, so there is nothing to train");
  return elements;
}

}  // namespace switchyard::train
