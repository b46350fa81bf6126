// What the APIs of chats have in common: a request's tools, and how its output is read.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/http/apis/assistant_output.h"
#include "server/http/json_fields.h"
#include "server/text/text.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::server {

class ChatOutputs {
 public:
  explicit ChatOutputs(const text::TextProcessor* text) : text_(text) {}

  // Reads tools and tool_choice (OpenAI's), and sets what `message` needs so that its output can be read: special
  // tokens that are shown, tokens that end it.
  absl::Status Prepare(const JsonFields& fields, v1::GenerateRequest* message);
  // Notes the rendered prompt, which may leave reasoning open; returns what the output begins with, where a call must
  // be made.
  std::string BeginOutput(const std::string& rendered);
  // A choice's output.  `whole`: the answer does not stream.
  AssistantOutput NewOutput(bool whole, std::string call_prefix) const;

 private:
  const text::TextProcessor* const text_;
  text::ToolTypes tools_;
  std::string forced_;  // begins the output
  text::ReasoningStart reasoning_ = text::ReasoningStart::kMayOpen;
};

}  // namespace switchyard::server
