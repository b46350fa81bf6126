#include "server/http/apis/chat_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "server/http/apis/chat.h"
#include "server/text/output/formats/tool_choice.h"

namespace switchyard::server {

absl::Status ChatOutputs::Prepare(const JsonFields& fields, v1::GenerateRequest* message) {
  ToolChoice choice;
  RETURN_IF_ERROR(ReadTools(fields, &choice));
  const text::OutputFormat& format = text_->output_format();
  if (choice.tools != nullptr) tools_ = text::ToolTypes(*choice.tools);
  if (choice.is_required) {
    if (format.tools == nullptr) {
      return rpc::BadField(fields.Name("tool_choice"),
                           "wants a call, but how this model writes calls is not known (--tool_call_parser)", "auto",
                           "");
    }
    absl::StatusOr<std::string> forced = text::ForcedCall(*format.tools, choice.name);
    if (!forced.ok()) return rpc::BadField(fields.Name("tool_choice"), forced.status().message(), "", choice.name);
    forced_ = *std::move(forced);
  }
  if (format.needs_special_tokens() && !message->has_skip_special_tokens()) message->set_skip_special_tokens(false);
  if (format.tools == nullptr || text_->tokenizer() == nullptr || message->ignore_eos()) return absl::OkStatus();
  for (const absl::string_view token : format.tools->end_tokens) {
    if (const int32_t id = text_->tokenizer()->TokenToId(token); id >= 0) message->add_stop_token_ids(id);
  }
  return absl::OkStatus();
}

std::string ChatOutputs::BeginOutput(const std::string& rendered) {
  const text::OutputFormat& format = text_->output_format();
  reasoning_ = text::ReasoningAfterPrompt(format, rendered);
  if (forced_.empty()) return "";
  const bool closes = std::exchange(reasoning_, text::ReasoningStart::kOver) == text::ReasoningStart::kOpen;
  return closes ? absl::StrCat("\n", format.reasoning->close, "\n\n", forced_) : forced_;
}

AssistantOutput ChatOutputs::NewOutput(bool whole, std::string call_prefix) const {
  AssistantOutput output(text_->output_format(), {.tools = tools_, .whole_calls = whole, .reasoning = reasoning_},
                         std::move(call_prefix));
  output.Begin(forced_);
  return output;
}

}  // namespace switchyard::server
