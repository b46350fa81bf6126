// What a job's spec says of this machine: the files that it names are really opened, beneath their roots, and there is
// room for its checkpoints.  Blocks on the disk; thread-safe.
#pragma once

#include "absl/status/status.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/jobs/job_spec.h"
#include "server/jobs/spec/model_check.h"

namespace switchyard::server {

// REQUIRES: Validate(spec) is OK.  Returns the first problem, naming the field: NOT_FOUND (BAD_FILE): a file is not
// there.  INVALID_ARGUMENT (BAD_FILE): it leads out of its root, is a folder, a FIFO, damaged, of another vocabulary,
// too short for a batch, empty text, or without a target in any list; a model that workers do not train.
// INVALID_ARGUMENT (BAD_FIELD): spec and model do not fit.  FAILED_PRECONDITION (NO_TOKENIZER): text, but the model has
// no tokenizer; (DISK_FULL): too little room.  Where check_model is null or gets no answer, a few keys of config.json
// are checked, with a line in the log; workers refuse the rest at the job's turn.
absl::Status CheckSpecFiles(const jobs::JobSpec& spec, const RootDir& datasets, const RootDir& checkpoints,
                            const CheckModelFn& check_model);

// Whether the model of a job can be dealt out to another number of workers.  INVALID_ARGUMENT (BAD_FIELD, "workers"),
// or as above for a model that is no longer there.
absl::Status CheckWorkersOfModel(const jobs::JobSpec& spec, const RootDir& checkpoints,
                                 const CheckModelFn& check_model);

// Most bytes of checkpoints at a time, one being written included, beside those that keep_every_steps keeps for ever.
double CheckpointBytes(const jobs::JobSpec& spec, double parameters);

}  // namespace switchyard::server
