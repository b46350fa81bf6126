// What the APIs of chats have in common: a request's tools, and how its output is read.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/constraint/constraint_spec.h"
#include "server/http/apis/assistant_output.h"
#include "server/http/apis/chat.h"
#include "server/http/json_fields.h"
#include "server/text/text.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::server {

class ChatOutputs {
 public:
  explicit ChatOutputs(const text::TextProcessor* text) : text_(text) {}

  // Reads tools and tool_choice (OpenAI's), and sets what `message` needs so that its output can be read: special
  // tokens that are shown, tokens that end it.  Where a call must be made, *constraint_field becomes "tools".
  absl::Status Prepare(const JsonFields& fields, v1::GenerateRequest* message, std::string* constraint_field);
  // Notes the rendered prompt, which may leave reasoning open; returns what the output begins with, where a call must
  // be made, or a constrained answer in its channel.
  std::string BeginOutput(const std::string& rendered);
  // The call that must be made, in the words of the model's format; else `spec`, behind what the model may think first.
  std::optional<ConstraintSpec> Constrain(std::optional<ConstraintSpec> spec) const;
  // A choice's output.  `whole`: the answer does not stream.
  AssistantOutput NewOutput(bool whole, std::string call_prefix) const;

 private:
  const text::TextProcessor* const text_;
  text::ToolTypes tools_;
  // Notes the calls that the output must be one of; none if the format's cannot be constrained.
  absl::Status PrepareCalls(const JsonFields& fields, const ToolChoice& choice);

  std::string forced_;        // begins the output
  bool constrained_ = false;  // by the request itself
  std::optional<ConstraintSpec> calls_;
  text::ReasoningStart reasoning_ = text::ReasoningStart::kMayOpen;
};

}  // namespace switchyard::server
