// What a job's spec says of this machine: the files that it names are really opened, beneath their roots, and there is
// room for its checkpoints.  Blocks on the disk; thread-safe.
#pragma once

#include "absl/status/status.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/jobs/job_spec.h"
#include "server/jobs/spec/model_check.h"

namespace switchyard::server {

// REQUIRES: Validate(spec) is OK.  The first problem, naming the field:
// NOT_FOUND (BAD_FILE): a file is not there.  INVALID_ARGUMENT (BAD_FILE): it leads out of its root, is a folder, a
// FIFO, damaged, of another vocabulary, too short for a batch, empty text, or without a target in any list; a model
// that workers do not train.  INVALID_ARGUMENT (BAD_FIELD): spec and model do not fit.  FAILED_PRECONDITION
// (NO_TOKENIZER): text, but the model has no tokenizer; (DISK_FULL): too little room.  check_model: asks the workers
// what they say of the model.  Where nobody can say (or it is null) its config.json is read by a few keys alone
// (model_check.h), which a log line says; workers then refuse the rest when it is the job's turn.
absl::Status CheckSpecFiles(const jobs::JobSpec& spec, const RootDir& datasets, const RootDir& checkpoints,
                            const CheckModelFn& check_model);

// Of a job that goes on with another number of workers: whether its model can be dealt out to them.  INVALID_ARGUMENT
// (BAD_FIELD, "workers"), or as above for a model that is not there any more.
absl::Status CheckWorkersOfModel(const jobs::JobSpec& spec, const RootDir& checkpoints,
                                 const CheckModelFn& check_model);

// Bytes that the job's checkpoints take at most at a time, one that is being written included, beside those that
// keep_every_steps keeps for ever.
double CheckpointBytes(const jobs::JobSpec& spec, double parameters);

}  // namespace switchyard::server
