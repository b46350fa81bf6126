// The real models' shapes that are measured, and tiny ones of the same kinds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "workers/model/config/config.h"

namespace switchyard {

// One MoE layer's routed experts.
struct MoeBenchShape {
  std::string model;
  int64_t hidden = 0;   // H
  int64_t ffn = 0;      // F
  int64_t experts = 0;  // E
  int64_t top_k = 0;    // K
};
std::vector<MoeBenchShape> MoeBenchShapes(bool tiny);
// Token counts of a layer's call.
std::vector<int64_t> MoeBenchTokens(bool tiny);

// Models as their config.json has them, the largest with fewer layers.  model_type names them.
std::vector<model::ModelConfig> BenchModels(bool tiny);

}  // namespace switchyard
