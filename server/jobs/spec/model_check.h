// The check of a model that a job names, made before the job is accepted: whether workers train it, and what the server
// must know of it.
//
// The server shares no code with its workers, so it runs their program: `switchyard-worker --check_model=NAME
// --checkpoint_root=DIR` prints one line (workers/train/job/check_trainable.h) and ends.  Where that gives no answer,
// a few keys of config.json must do.  Thread-safe; blocks until the program has answered, at most Options::limit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace switchyard::server {

struct TrainedModelFacts {
  std::string architecture;  // "MixtralForCausalLM"
  int64_t context = 0;       // tokens
  int64_t vocab = 0;
  int64_t experts = 0;       // of a layer
  bool router_bias = false;  // experts are chosen by scores and a bias
  double parameters = 0;     // about so many
};

// `folder`: beneath the checkpoint root.  `weights`: the job begins from its weights.  Unavailable: there was no
// answer.
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

// The facts as config.json has them; weights are not read.  InvalidArgument: no JSON object, an architecture that no
// worker trains, a key that is missing or no whole number in its bounds.
absl::StatusOr<TrainedModelFacts> ReadModelFacts(absl::string_view config_json);

}  // namespace switchyard::server
