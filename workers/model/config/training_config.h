// The fields of a config.json that training alone reads (others: config.h).  Pure.  Errors name the key, what was found
// and what to do.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "workers/tensor/dtype.h"

namespace switchyard::model {

struct TrainingConfig {
  double initializer_range = 0.02;             // standard deviation of matrices that are drawn anew
  std::optional<double> router_aux_loss_coef;  // weight of the load-balancing loss
};

// Unimplemented: dropout or noise above 0, which transformers trains with and we do not; InvalidArgument: a bad number.
absl::StatusOr<TrainingConfig> ParseTrainingConfig(absl::string_view config_text);

// Returns the config with that dtype as its `dtype`, and as its `torch_dtype` if it has one; the same bytes if it has
// them already.  Loaders of a checkpoint in its own dtype read it.  InvalidArgument: no JSON object.
absl::StatusOr<std::string> ConfigWithDType(absl::string_view config_text, DType dtype);

}  // namespace switchyard::model
