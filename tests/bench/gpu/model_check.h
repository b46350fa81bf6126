// The model on the device against the model on the CPU, with the same random weights.
#pragma once

#include "absl/status/status.h"
#include "tests/bench/gpu/bench.h"
#include "workers/model/config/config.h"

namespace switchyard {

// The first layers alone, and the logits of a few tokens: half of the rows must be within 2 % of the CPU's norm, and no
// row be off entirely.  (A row where a rounding chose another expert is not near.)
absl::Status CheckModel(const Bench& bench, const model::ModelConfig& config);

}  // namespace switchyard
