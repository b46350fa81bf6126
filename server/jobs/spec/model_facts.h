// What the server must know of a model that a job names, from its config.json; it never reads weights.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::server {

struct TrainedModelFacts {
  std::string architecture;  // "MixtralForCausalLM"
  int64_t context = 0;       // tokens
  int64_t vocab = 0;
  int64_t experts = 0;       // of a layer
  bool router_bias = false;  // experts are chosen by scores and a bias
  double parameters = 0;     // about so many
};

// InvalidArgument: no JSON object, an architecture that no worker trains, a key that is missing or no whole number in
// its bounds.  Other keys are the workers' to check.
absl::StatusOr<TrainedModelFacts> ReadModelFacts(absl::string_view config_json);

}  // namespace switchyard::server
