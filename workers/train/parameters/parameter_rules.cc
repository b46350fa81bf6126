#include "workers/train/parameters/parameter_rules.h"

#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/lora_targets.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/params.h"

namespace switchyard::train {
namespace {

constexpr int64_t kMostExperts = 1 << 20;

// A list for each block of parameters.h.
using Blocks = std::vector<std::vector<model::Param>>;

// Whether the i-th rule holds for some weight.
absl::Status CheckRule(absl::Span<const jobs::ParameterRule> rules, size_t i, const Blocks& blocks) {
  const model::Param* earlier = nullptr;  // fits, but another rule holds for it
  size_t count = 0;
  for (const std::vector<model::Param>& block : blocks) {
    count += block.size();
    for (const model::Param& param : block) {
      if (!FitsPattern(rules[i].pattern, param.name)) continue;
      if (RuleFor(rules, param.name) == &rules[i]) return absl::OkStatus();
      if (earlier == nullptr) earlier = &param;
    }
  }
  const std::string rule = absl::StrCat("parameters[", i, "]: \"", rules[i].pattern, "\" ");
  if (earlier == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(rule, "fits no weight of ", count, ", which have names such as ",
                                                   blocks.front().front().name, " and ",
                                                   blocks[blocks.size() / 2].front().name));
  }
  const jobs::ParameterRule* const holds = RuleFor(rules, earlier->name);
  return absl::InvalidArgumentError(
      absl::StrCat(rule, "holds for no weight: rules before it hold for all that it fits, such as parameters[",
                   holds - rules.data(), "], \"", holds->pattern, "\", for ", earlier->name));
}

// Those that rules are about.
absl::StatusOr<Blocks> BlocksOf(const jobs::JobSpec& spec, const model::ModelConfig& config) {
  const absl::int128 experts = absl::int128(config.num_moe_layers()) * config.num_experts;
  const bool adapted = spec.lora.rank > 0;
  if (adapted) RETURN_IF_ERROR(model::CheckAdapterTargets(config, AdaptersOf(spec.lora)));
  if (experts > kMostExperts && (!adapted || jobs::AdaptsExperts(spec.lora))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s for a model of %d experts in all, at most %d",
                        adapted ? "lora.targets: adapters of experts" : "parameters: rules", experts, kMostExperts));
  }
  if (adapted) {
    Blocks blocks;
    for (model::Param& param : model::DescribeAdapterParams(config, AdaptersOf(spec.lora))) {
      blocks.push_back({std::move(param)});
    }
    return blocks;
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

absl::int128 FrozenElements::OfBase() const { return std::accumulate(of_expert.begin(), of_expert.end(), dense); }

absl::StatusOr<FrozenElements> CountFrozen(const jobs::JobSpec& spec, const model::ModelConfig& config) {
  const bool adapted = spec.lora.rank > 0;
  if (!adapted && spec.parameters.empty()) return FrozenElements();
  ASSIGN_OR_RETURN(const Blocks blocks, BlocksOf(spec, config));
  for (size_t i = 0; i < spec.parameters.size(); ++i) RETURN_IF_ERROR(CheckRule(spec.parameters, i, blocks));
  FrozenElements elements;
  if (!adapted) elements.of_expert.resize(static_cast<size_t>(config.num_experts));
  bool trains = false;
  int fixed = 0, moved = 0;  // of routers
  for (const std::vector<model::Param>& block : blocks) {
    bool all_frozen = true;
    absl::int128 count = 0;
    for (const model::Param& param : block) {
      const jobs::ParameterRule* const rule = RuleFor(spec.parameters, param.name);
      const bool frozen = rule != nullptr && rule->frozen;
      all_frozen &= frozen;
      trains |= !frozen && !param.router_bias;
      if (param.router_bias) ++(frozen ? fixed : moved);
      count += absl::int128(param.rows) * param.columns;
    }
    const model::Param& first = block.front();
    if (adapted) {
      elements.adapters += count;
      if (first.shard == model::Shard::kExpert && first.expert == 0) elements.adapters_of_expert += count;
    } else if (all_frozen) {
      (first.shard == model::Shard::kExpert ? elements.of_expert[static_cast<size_t>(first.expert)] : elements.dense) +=
          count;
    }
  }
  if (!trains) return absl::InvalidArgumentError("parameters: all weights are frozen, so there is nothing to train");
  if (spec.balance_bias_rate > 0 && fixed > 0 && moved == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameters: the biases of all routers are frozen, so a balance_bias_rate of ",
                     spec.balance_bias_rate, " would move none; 0 is wanted, or a rule that leaves them"));
  }
  return elements;
}

}  // namespace switchyard::train
