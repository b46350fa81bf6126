// The check of a job's model: whether workers can train the model of its folder.
//
// A rank makes it when it opens its model (setup/job_setup.h), and the server before it accepts a job: it runs
// `switchyard-worker --check_model=NAME --checkpoint_root=DIR`, which prints ModelCheckLine.  Thread-safe; allocates no
// weights.  Does not check tensors' names and shapes (loading does) nor a spec's numbers (job_spec.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/io/root_dir.h"
#include "workers/model/config/config.h"

namespace switchyard::train {

// ParseModelConfig's errors; Unimplemented: a model without experts.
absl::StatusOr<model::ModelConfig> ParseTrainableConfig(absl::string_view config_text);

// Checks a folder below the checkpoint root.  `weights`: a job begins from its weights, so their files must open and
// have the sizes that their headers give.  Errors: also those of ModelDir and Checkpoint.
absl::StatusOr<model::ModelConfig> CheckTrainable(const RootDir& checkpoints, const std::string& path, bool weights);

// The answer as one line of JSON with its newline: {"architecture", "context", "vocab", "experts", "router_bias",
// "parameters"}, or {"code", "error"} with the status' code.
std::string ModelCheckLine(const absl::StatusOr<model::ModelConfig>& checked);

}  // namespace switchyard::train
