// Checks, before a job is accepted, whether workers can train its model, and finds the model's facts.
//
// The server shares no code with its workers, so it runs their program: `switchyard-worker --check_job
// --checkpoint_root=DIR` reads the spec, prints one line (workers/train/job/check_job.h) and ends.  If there is
// no answer, a few keys of config.json are checked instead.  Thread-safe; blocks until the program has answered, at
// most Options::limit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/jobs/job_spec.h"

namespace switchyard::server {

struct TrainedModelFacts {
  std::string architecture;  // "MixtralForCausalLM"
  int64_t context = 0;       // tokens
  int64_t vocab = 0;
  int64_t experts = 0;       // of a layer
  bool router_bias = false;  // routers choose by scores plus biases
  double parameters = 0;     // about
  // Of the job, where the workers' program said so, else 0: numbers of the model without moments, and of adapters.
  double frozen = 0, adapters = 0;
};

// Unavailable: there was no answer.
using CheckModelFn = std::function<absl::StatusOr<TrainedModelFacts>(const jobs::JobSpec& spec)>;

struct ModelCheckOptions {
  std::string binary;              // the workers' program
  std::string checkpoint_root;     // absolute, or relative to this process's working directory
  std::string offload_dir;         // where workers put files; empty: nowhere
  bool workers_are_local = false;  // all training workers share this machine's memory
  absl::Duration limit = absl::Seconds(30);
  int64_t max_answer_bytes = 64 << 10;
  std::function<bool()> stopping = nullptr;  // called while waiting; true ends the wait, as `limit` does
};
CheckModelFn AskWorkerProgram(ModelCheckOptions options);

// Parses the line that the program printed.  Unavailable: it is not an answer.
absl::StatusOr<TrainedModelFacts> ParseModelCheckLine(absl::string_view line);

// Reads the facts from config.json, without the weights.  InvalidArgument: not a JSON object, an architecture that no
// worker trains, or a key that is missing or not an integer within its bounds.
absl::StatusOr<TrainedModelFacts> ReadModelFacts(absl::string_view config_json);

}  // namespace switchyard::server
