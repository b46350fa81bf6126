// The policies that an epoch may run, by kind.
#pragma once

#include <memory>
#include <vector>

#include "scheduler/offload/policies/cache_policy.h"

namespace switchyard::offload {

enum class OffloadKind : uint8_t { kExpectedUse, kLfu, kLru, kStatic };

struct PolicyInput {
  OffloadShape shape;
  CopyCost cost;
  absl::Span<const int64_t> popularity;  // [L * E] by profile, as in RulePolicy; 0 = not resident at first
  int least_per_layer = 1;               // lru and lfu have a cache per layer where each layer gets so many slots
};

std::unique_ptr<CachePolicy> MakeCachePolicy(OffloadKind kind, const PolicyInput& input);

// The candidates of a DuelingPolicy: ours, and the baselines, which cost a fiftieth of it and are better where the link
// is always busy.
inline constexpr OffloadKind kDuelKinds[] = {OffloadKind::kExpectedUse, OffloadKind::kLfu, OffloadKind::kLru,
                                             OffloadKind::kStatic};
// In the order of kDuelKinds.
std::vector<std::unique_ptr<CachePolicy>> MakeDuelists(const PolicyInput& input);

}  // namespace switchyard::offload
