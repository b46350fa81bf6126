// What goldens of PEFT's adapters have in common (tests/golden/adapters, tests/golden/preferences): their targets, and
// the tensors of all experts of a layer, which are compared with those of each expert.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/jobs/lora_targets.h"
#include "workers/checkpoint/adapters/fused_experts.h"
#include "workers/model/weights/adapters.h"

namespace switchyard::train {

using AdapterValues = std::map<std::string, std::vector<double>>;  // by parameter

// indices: into make.py's TARGETS + PARAMETERS.
inline std::vector<std::string> AdapterTargets(const std::vector<double>& indices) {
  std::vector<std::string> targets;
  for (const double target : indices) {
    const auto index = static_cast<size_t>(target), first = std::size(jobs::kLoraTargets);
    targets.emplace_back(index < first ? jobs::kLoraTargets[index] : jobs::kExpertLoraTargets[index - first]);
  }
  return targets;
}

// PEFT's tensors of all experts of a layer as those of each expert; other values as they are.
inline AdapterValues SplitFused(const AdapterValues& values, const model::AdapterDesc& adapters, int64_t num_experts) {
  const bool down = std::find(adapters.targets.begin(), adapters.targets.end(), "down_proj") != adapters.targets.end();
  AdapterValues split;
  for (const auto& [name, all] : values) {
    const auto at = name.find(checkpoint::kFusedExperts);
    if (at == std::string::npos) {
      split[name] = all;
      continue;
    }
    const bool inner = absl::StrContains(name, checkpoint::kInnerFusedExperts);
    const bool is_a = absl::EndsWith(name, "lora_A.weight");
    const char* const projection = inner || !down ? "gate_up_proj" : "down_proj";
    const auto own = static_cast<int64_t>(all.size()) / num_experts, rank = adapters.rank;
    for (int64_t e = 0; e < num_experts; ++e) {
      std::vector<double>& to = split[absl::StrCat(name.substr(0, at), ".mlp.experts.", e, ".", projection,
                                                   is_a ? ".lora_A.weight" : ".lora_B.weight")];
      if (is_a) {
        to.assign(all.begin() + e * own, all.begin() + (e + 1) * own);
        continue;
      }
      for (int64_t i = 0; i < own / rank; ++i) {
        for (int64_t j = 0; j < rank; ++j) to.push_back(all[static_cast<size_t>((i * rank + j) * num_experts + e)]);
      }
    }
  }
  return split;
}

}  // namespace switchyard::train
