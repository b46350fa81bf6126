// A cache policy by the name that --expert_policy gives it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/offload/expert_budget.h"
#include "scheduler/offload/policies/policy_kind.h"

namespace switchyard::test {

using MakePolicy = std::function<std::unique_ptr<offload::CachePolicy>(const offload::OffloadShape&)>;

inline MakePolicy PolicyOf(const std::string& name) {
  return [kind = *offload::ParseExpertPolicy(name)](
             const offload::OffloadShape& shape) -> std::unique_ptr<offload::CachePolicy> {
    const std::vector<int64_t> popularity(static_cast<size_t>(shape.num_keys()), 1);
    return offload::MakeCachePolicy(
        kind, {.shape = shape, .cost = {.copy_ticks = 8, .chunks_per_copy = 4}, .popularity = popularity});
  };
}

}  // namespace switchyard::test
