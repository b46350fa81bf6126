// Random weights for a config, so that a model's real shapes run without its checkpoint.
//
// Matrices are drawn from a uniform distribution of standard deviation 0.02, gammas are 1, biases 0.  They depend on
// config and residents alone and are numbers of bf16, so that fp32 and fp64 have the same; an expert's do not depend on
// its rank.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/loader.h"
#include "workers/model/weights/weights.h"

namespace switchyard::model {

// Uses options.dtype, residents, device, experts, progress.  Errors: LoadWeights', of memory and devices.
absl::StatusOr<ModelWeights> MakeDummyWeights(const ModelConfig& config, LoadOptions options);

// Makes the routed experts of options.residents alone, as LoadExperts (loader.h).
absl::Status MakeDummyExperts(const ModelConfig& config, LoadOptions options,
                              std::function<char*(int layer, int32_t expert)> place);

}  // namespace switchyard::model
