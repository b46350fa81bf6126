// Checks a job's spec against this machine: opens the files that it names, beneath their roots, and checks that there
// is room for its checkpoints.  Blocks on the disk; thread-safe.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/jobs/job_spec.h"
#include "server/jobs/spec/model_check.h"

namespace switchyard::server {

// REQUIRES: Validate(spec) is OK.  Returns JobBytes (job_bytes.h), or the first problem, naming the field: NOT_FOUND
// (BAD_FILE): a file is not there.  INVALID_ARGUMENT (BAD_FILE): it leads out of its root, is a folder, a FIFO,
// damaged, of another vocabulary, too short for a batch, or without a target in any list; text without documents, or
// with a line that is none, with the line's place (of a list's first 64 MiB, the rest is seen when it is packed); a
// model that workers do not train. INVALID_ARGUMENT (BAD_FIELD): spec and model do not fit.  FAILED_PRECONDITION
// (NO_TOKENIZER): text, but the model has no tokenizer; (NO_CHAT_TEMPLATE): conversations, but no template;
// (DISK_FULL): too little room.  Where check_model is null or gets no answer, a few keys of config.json are checked,
// with a line in the log; workers refuse the rest at the job's turn.  `files_ready`: as in Job: text that is packed is
// not looked at.  Cancelled where `cancelled` says so.
absl::StatusOr<double> CheckSpecFiles(const jobs::JobSpec& spec, const RootDir& datasets, const RootDir& checkpoints,
                                      const CheckModelFn& check_model, const std::function<bool()>& cancelled,
                                      int32_t files_ready = 0);

// Sees to it that another job's checkpoint from which the job begins stays (job_folder.h).  NOT_FOUND (BAD_FILE): it
// was removed meanwhile.
absl::Status KeepBase(const jobs::JobSpec& spec, const RootDir& checkpoints);

// Checks whether the job's model can be split among another number of workers.  INVALID_ARGUMENT (BAD_FIELD,
// "workers"), or the errors above for a model that no longer exists.
absl::Status CheckWorkersOfModel(const jobs::JobSpec& spec, const RootDir& checkpoints,
                                 const CheckModelFn& check_model);

}  // namespace switchyard::server
