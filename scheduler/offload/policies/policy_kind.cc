#include "scheduler/offload/policies/policy_kind.h"

#include "scheduler/offload/policies/expected_use_policy.h"
#include "scheduler/offload/policies/lru_policy.h"

namespace switchyard::offload {

std::unique_ptr<CachePolicy> MakeCachePolicy(OffloadKind kind, const PolicyInput& input) {
  if (kind == OffloadKind::kExpectedUse) {
    return std::make_unique<ExpectedUsePolicy>(input.shape, input.cost, ExpectedUsePolicy::Options(), input.popularity);
  }
  const bool per_layer = input.shape.num_slots >= input.least_per_layer * input.shape.num_layers;
  return std::make_unique<LruPolicy>(input.shape, per_layer, input.popularity);
}

}  // namespace switchyard::offload
