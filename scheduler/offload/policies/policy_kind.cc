#include "scheduler/offload/policies/policy_kind.h"

#include "scheduler/offload/policies/expected_use_policy.h"
#include "scheduler/offload/policies/rule_policy.h"

namespace switchyard::offload {

std::unique_ptr<CachePolicy> MakeCachePolicy(OffloadKind kind, const PolicyInput& input) {
  using Rule = RulePolicy::Rule;
  if (kind == OffloadKind::kExpectedUse) {
    return std::make_unique<ExpectedUsePolicy>(input.shape, input.cost, ExpectedUsePolicy::Options(), input.popularity);
  }
  const Rule rule = kind == OffloadKind::kLru ? Rule::kLru : kind == OffloadKind::kLfu ? Rule::kLfu : Rule::kStatic;
  const bool per_layer = input.shape.num_slots >= input.least_per_layer * input.shape.num_layers;
  const RulePolicy::Options options = {.rule = rule, .per_layer = rule != Rule::kStatic && per_layer};
  return std::make_unique<RulePolicy>(input.shape, options, input.popularity);
}

std::vector<std::unique_ptr<CachePolicy>> MakeDuelists(const PolicyInput& input) {
  std::vector<std::unique_ptr<CachePolicy>> policies;
  for (const OffloadKind kind : kDuelKinds) policies.push_back(MakeCachePolicy(kind, input));
  return policies;
}

}  // namespace switchyard::offload
