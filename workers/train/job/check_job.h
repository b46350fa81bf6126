// The check of a job: whether workers can train the model of its folder, from these weights and in this memory.
//
// A rank checks the config when it opens its model (setup/job_setup.h).  Before it accepts a job, the server has all of
// it checked: it runs `switchyard-worker --check_job --checkpoint_root=DIR`, which reads the spec from its standard
// input and prints JobCheckLine.  Thread-safe; loads no weights.  Does not check a spec's numbers (job_spec.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/jobs/job_spec.h"
#include "workers/model/config/config.h"
#include "workers/train/parameters/parameter_rules.h"

namespace switchyard::train {

// ParseModelConfig's errors; Unimplemented: a model without experts.
absl::StatusOr<model::ModelConfig> ParseTrainableConfig(absl::string_view config_text);

struct JobCheckOptions {
  // Ranks of the job that share this machine's memory, and its bytes, of which others may use some now; 0 ranks: other
  // machines have them, so the job's memory is checked when it begins.
  int ranks_here = 0;
  int64_t memory_bytes = 0;
  bool can_offload = false;                      // ranks have a place for files
  absl::Duration read_limit = absl::Seconds(2);  // for the values of a base checkpoint (check_tensors.h)
};

// What was found of a job's model.
struct CheckedJob {
  model::ModelConfig config;
  FrozenElements frozen;
};
// Errors: also those of ModelDir, Checkpoint, CheckTensors, CountFrozen (parameter_rules.h) and MustOffload.
absl::StatusOr<CheckedJob> CheckJob(const RootDir& checkpoints, const jobs::JobSpec& spec,
                                    const JobCheckOptions& options);

// The answer as one line of JSON with its newline: {"architecture", "context", "vocab", "experts", "router_bias",
// "parameters", "frozen", "adapters"}, of which the last two count numbers without moments and numbers of adapters, or
// {"code", "error"} with the status' code.
std::string JobCheckLine(const absl::StatusOr<CheckedJob>& checked);

}  // namespace switchyard::train
