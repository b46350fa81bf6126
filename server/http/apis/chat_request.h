// What the APIs of chats have in common: messages, tools, and how an output is read.
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

class ChatResponseWriter : public ResponseWriter {
 public:
  // Notes the rendered prompt, which may leave reasoning open; returns what the output begins with, where a call must
  // be made, or a constrained answer in its channel, or the last message is to be continued.
  std::string BeginOutput(const std::string& rendered) override;
  // The call that must be made, in the words of the model's format; else `spec`, behind what the model may think first.
  std::optional<ConstraintSpec> Constrain(std::optional<ConstraintSpec> spec) override;

 protected:
  explicit ChatResponseWriter(const text::TextProcessor* text) : text_(text), format_(text->output_format()) {}

  // Reads all that the APIs have in common, in OpenAI's form, but lengths.  Sets what `message` needs so that its
  // output can be read: special tokens that are shown, tokens that end it.
  absl::Status ReadChat(const JsonFields& fields, v1::GenerateRequest* message);
  // A choice's output.  `whole`: the answer does not stream.
  AssistantOutput NewOutput(bool whole, std::string call_prefix) const;

 private:
  // Where the model is to go on with the last message: takes it from `messages`.
  absl::Status ReadContinued(const JsonFields& fields, v1::Messages* messages);
  absl::Status PrepareOutput(const JsonFields& fields, v1::GenerateRequest* message);
  // Begins the output with a call, of the function that the choice names or any.
  absl::Status ForceCall(const JsonFields& fields, const ToolChoice& choice);
  // Leaves it to the model whether it calls, and holds its calls to their schemas, where a marker begins them.
  absl::Status HoldCalls(const ToolChoice& choice);
  // Notes the calls that may come; none without a tokenizer.
  absl::Status PrepareCalls(const ToolChoice& choice);

  const text::TextProcessor* const text_;
  text::OutputFormat format_;  // the model's; where that has no calls and one must be made, a format for it
  text::ToolTypes tools_;
  std::string forced_;        // begins the output
  std::string continued_;     // likewise, but the client has it
  bool constrained_ = false;  // by the request itself
  bool one_call_ = false;     // no call behind the first one is shown
  bool skip_special_tokens_ = true;
  std::optional<ConstraintSpec> calls_;
  text::ReasoningStart reasoning_ = text::ReasoningStart::kMayOpen;
};

}  // namespace switchyard::server
