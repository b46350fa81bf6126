// The question to the workers' own parser whether they train a model, asked before a job is accepted.
//
// The server shares no code with its workers, so it runs their program: `switchyard-worker --check_model=NAME
// --checkpoint_root=DIR` prints one line (workers/train/job/check_trainable.h) and ends.  Thread-safe; blocks until the
// program has answered, at most Options::limit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/jobs/spec/model_facts.h"

namespace switchyard::server {

// `folder`: beneath the checkpoint root.  `weights`: the job begins from its weights.  Unavailable: nobody could say;
// other errors are the workers' own about the model.
using CheckModelFn = std::function<absl::StatusOr<TrainedModelFacts>(const std::string& folder, bool weights)>;

struct ModelCheckOptions {
  std::string binary;           // of the workers
  std::string checkpoint_root;  // an absolute path, or one of this process's folder
  absl::Duration limit = absl::Seconds(30);
  int64_t max_answer_bytes = 64 << 10;
  std::function<bool()> stopping = nullptr;  // asked while it waits: true ends the wait, as the limit does
};
CheckModelFn AskWorkerProgram(ModelCheckOptions options);

// The program's line as an answer.  Unavailable: it is none.
absl::StatusOr<TrainedModelFacts> ParseModelCheckLine(absl::string_view line);

}  // namespace switchyard::server
