#include "scheduler/offload/policies/policy_kind.h"

#include "scheduler/offload/policies/expected_use_policy.h"
#include "scheduler/offload/policies/rule_policy.h"

namespace switchyard::offload {

std::unique_ptr<CachePolicy> MakeCachePolicy(OffloadKind kind, const PolicyInput& input) {
  using Rule = RulePolicy::Rule;
  const auto rule = [&input](Rule which, bool prefetch) {
    const bool per_layer = input.shape.num_slots >= input.least_per_layer * input.shape.num_layers;
    const RulePolicy::Options options = {
        .rule = which, .prefetch = prefetch, .per_layer = which != Rule::kStatic && per_layer};
    return std::make_unique<RulePolicy>(input.shape, options, input.popularity);
  };
  switch (kind) {
    case OffloadKind::kLfu:
    case OffloadKind::kLfuGreedy:
      return rule(Rule::kLfu, kind == OffloadKind::kLfuGreedy);
    case OffloadKind::kLru:
    case OffloadKind::kLruGreedy:
      return rule(Rule::kLru, kind == OffloadKind::kLruGreedy);
    case OffloadKind::kStatic:
      return rule(Rule::kStatic, false);
    case OffloadKind::kExpectedUse:
    case OffloadKind::kExpectedUseDemandOnly:
      break;
  }
  ExpectedUsePolicy::Options options;
  if (kind == OffloadKind::kExpectedUseDemandOnly) options.prefetch_ahead = 0;
  return std::make_unique<ExpectedUsePolicy>(input.shape, input.cost, options, input.popularity);
}

std::vector<std::unique_ptr<CachePolicy>> MakeDuelists(const PolicyInput& input) {
  std::vector<std::unique_ptr<CachePolicy>> policies;
  for (const OffloadKind kind : kDuelKinds) policies.push_back(MakeCachePolicy(kind, input));
  return policies;
}

}  // namespace switchyard::offload
