// The check of the weights that a job begins from, without loading them.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"

namespace switchyard::train {

// Checks that every tensor of the model is there with its shape and a dtype that can be loaded, and that there are no
// others; then reads values, tensor by tensor, for at most `limit`, and checks that they are finite.  Memory: some MB,
// and addresses for the model.  Errors: BuildParams's and CheckAllUsed's, LoadParams's for values.
absl::Status CheckTensors(const checkpoint::Checkpoint& checkpoint, const model::ModelConfig& config,
                          absl::Duration limit);

}  // namespace switchyard::train
