// Converts and validates requests into plain values, and results into messages.
//
// Every problem is an INVALID_ARGUMENT, NOT_FOUND or FAILED_PRECONDITION with reason, field, limit and actual
// (errors.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/constraint/constraint_compiler.h"
#include "server/engine/request.h"
#include "server/text/text.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::server {

struct RequestLimits {
  int32_t max_choices = 64;
  int32_t max_stop_strings = 64;
  size_t max_stop_bytes = 1024;
  int32_t max_logit_bias = 1024;
  int32_t max_logprobs = 20;
  size_t max_request_id_bytes = 128;
  size_t max_prompt_bytes = 4 << 20;
};

// What the API of a call adds to its output.  Used by one thread at a time; its methods in this order.
class OutputFrame {
 public:
  virtual ~OutputFrame() = default;
  // Gets messages as the chat template rendered them; returns what the output begins with, as part of the prompt.
  virtual std::string BeginOutput(const std::string& /*rendered*/) { return ""; }
  // Returns what the output must be, of what the message says (nullopt: nothing).
  virtual std::optional<ConstraintSpec> Constrain(std::optional<ConstraintSpec> spec) { return spec; }
  // The client's name of the constraint, for errors; empty: that of the message's field.
  virtual std::string constraint_field() const { return ""; }
};

struct ConvertArgs {
  const ServedModel* model = nullptr;
  const text::TextProcessor* text = nullptr;
  RequestLimits limits;
  uint64_t drawn_seed = 0;  // for a request without one
  std::string drawn_id;     // for a request without one
  absl::Time now;
  absl::Time wall_now;  // for templates that print a date
  absl::Time deadline = absl::InfiniteFuture();
  std::function<absl::Time()>
      clock;  // that `now` and `deadline` are read from; rendering of a chat template ends at `deadline`
  std::function<bool()> cancelled;
  OutputFrame* output = nullptr;              // borrowed; null: nothing is added
  ConstraintCompiler* constraints = nullptr;  // null: no constraints
};

// Renders, tokenizes, fills in defaults and checks.
absl::StatusOr<std::unique_ptr<InferenceRequest>> ConvertGenerate(const v1::GenerateRequest& message,
                                                                  const ConvertArgs& args);

absl::StatusOr<v1::TokenizeResponse> ConvertTokenize(const v1::TokenizeRequest& message, const ConvertArgs& args);
absl::StatusOr<v1::DetokenizeResponse> ConvertDetokenize(const v1::DetokenizeRequest& message, const ConvertArgs& args);

// Returns NOT_FOUND unless `name` is empty or one of the served model's (model_names.h).
absl::Status CheckModelName(const std::string& name, const ServedModel& model);

v1::GenerateResponse ToProto(OutputChunk chunk, const text::TextProcessor& text);

}  // namespace switchyard::server
