// Random weights for a config alone: so that a model's real shapes run where its checkpoint is not at hand.
//
// Matrices are drawn from a uniform distribution of standard deviation 0.02, gammas are 1, biases 0.  The same for the
// same config, dtype and residents: an expert's numbers depend on the expert, not on the rank that holds it.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/loader.h"
#include "workers/model/weights/weights.h"

namespace switchyard::model {

// Uses options.dtype, residents, device, experts, num_threads, progress.  Errors: as LoadWeights', of memory and
// devices.
absl::StatusOr<ModelWeights> MakeDummyWeights(const ModelConfig& config, LoadOptions options);

// The routed experts of options.residents alone, as loader.h's LoadExperts.
absl::Status MakeDummyExperts(const ModelConfig& config, LoadOptions options,
                              std::function<char*(int layer, int32_t expert)> place);

}  // namespace switchyard::model
