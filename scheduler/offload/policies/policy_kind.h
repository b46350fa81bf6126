// The policies that a worker may run, by kind.
#pragma once

#include <cstdint>
#include <memory>

#include "scheduler/offload/policies/cache_policy.h"

namespace switchyard::offload {

enum class OffloadKind : uint8_t { kExpectedUse, kLru };

struct PolicyInput {
  OffloadShape shape;
  CopyCost cost;
  absl::Span<const int64_t> popularity;  // [L * E] by profile; 0 = not resident at first
  int least_per_layer = 1;               // lru has a cache per layer where each layer gets so many slots
};

std::unique_ptr<CachePolicy> MakeCachePolicy(OffloadKind kind, const PolicyInput& input);

}  // namespace switchyard::offload
