// The model on the device in bf16 against the model on the CPU in fp32, with the same random weights.
#pragma once

#include "absl/status/status.h"
#include "tests/bench/gpu/bench.h"
#include "workers/model/config/config.h"

namespace switchyard {

// The first layers alone, and the logits of decodes behind 4 Ki keys and behind few: half of the rows must be within 2
// % of the CPU's norm, and no row be off entirely.  (A row where a rounding chose another expert is not near.)
absl::Status CheckModel(const Bench& bench, const model::ModelConfig& config);

}  // namespace switchyard
