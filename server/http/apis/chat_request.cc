#include "server/http/apis/chat_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "server/constraint/call_grammar.h"
#include "server/constraint/constraint_compiler.h"
#include "server/http/apis/openai_request.h"
#include "server/text/output/formats/tool_choice.h"

namespace switchyard::server {

namespace {

bool HasStrictFunction(const ToolChoice& choice) {
  return choice.tools != nullptr &&
         std::any_of(choice.tools->begin(), choice.tools->end(), [](const JsonFields::Json& tool) {
           const auto strict = tool["function"].find("strict");
           return strict != tool["function"].end() && *strict == true;
         });
}

}  // namespace

absl::Status ChatResponseWriter::ForceCall(const JsonFields& fields, const ToolChoice& choice) {
  // All of the call but its values is given or held: any format that the parser reads will do.
  if (format_.tools == nullptr && format_.channels()) {
    return rpc::BadField(fields.Name("tool_choice"), "wants a call, which --tool_call_parser=none has ruled out",
                         "auto", "");
  }
  if (format_.tools == nullptr) format_.tools = *text::FindToolFormat("hermes");
  if (!continued_.empty()) {
    return rpc::BadField(fields.Name("tool_choice"), "wants a call, but the answer is to go on with a text", "auto",
                         "");
  }
  absl::StatusOr<std::string> forced = text::ForcedCall(*format_.tools, choice.name);
  if (!forced.ok()) return rpc::BadField(fields.Name("tool_choice"), forced.status().message(), "", choice.name);
  forced_ = *std::move(forced);
  return PrepareCalls(choice);
}

absl::Status ChatResponseWriter::HoldCalls(const ToolChoice& choice) {
  const text::ToolFormat& format = *format_.tools;
  const absl::string_view opener = format.openers.empty() ? absl::string_view() : format.openers[0].marker;
  // Nothing shows where a call would begin.  (Clients that set strict for every function still work.)
  if (opener.empty() || format.bare_objects) return absl::OkStatus();
  RETURN_IF_ERROR(PrepareCalls(choice));
  if (!calls_.has_value()) return absl::OkStatus();
  calls_->opener = MarkSpecialTokens(*text_->tokenizer(), opener);
  calls_->behind_opener = MarkSpecialTokens(*text_->tokenizer(), absl::StripPrefix(format.force_before_name, opener));
  for (const text::CallOpener& other : format.openers) calls_->not_in_text.emplace_back(other.marker);
  return absl::OkStatus();
}

absl::Status ChatResponseWriter::PrepareCalls(const ToolChoice& choice) {
  const text::ToolFormat& format = *format_.tools;
  if (text_->tokenizer() == nullptr) return absl::OkStatus();
  const auto marked = [this](absl::string_view text) { return MarkSpecialTokens(*text_->tokenizer(), text); };
  ConstraintSpec spec = {
      .kind = ConstraintSpec::Kind::kCalls, .markup = MarkupOf(format, marked), .end = marked(format.force_end)};
  if (choice.name.empty() && choice.may_be_many) spec.between = marked(format.force_between);
  for (const JsonFields::Json& tool : *choice.tools) {
    const JsonFields function(tool["function"], "function.");
    CallSpec call = {.name = tool["function"]["name"], .behind = marked(format.force_behind_arguments)};
    if (!choice.name.empty() && call.name != choice.name) continue;
    if (choice.name.empty()) call.before = absl::StrCat(call.name, marked(format.force_behind_name));
    const JsonFields::Json* parameters = nullptr;
    RETURN_IF_ERROR(function.Object("parameters", &parameters));
    call.parameters = parameters == nullptr ? "{}" : JsonText(*parameters);
    RETURN_IF_ERROR(function.Bool("strict", [&call](bool value) { call.is_strict = value; }));
    spec.calls.push_back(std::move(call));
  }
  calls_ = std::move(spec);
  return absl::OkStatus();
}

absl::Status ChatResponseWriter::ReadChat(const JsonFields& fields, v1::GenerateRequest* message) {
  RETURN_IF_ERROR(ReadMessages(fields, "messages", message->mutable_messages()));
  RETURN_IF_ERROR(ReadContinued(fields, message->mutable_messages()));
  RETURN_IF_ERROR(ReadCommon(fields, message, &constraint_field_));
  return PrepareOutput(fields, message);
}

absl::Status ChatResponseWriter::ReadContinued(const JsonFields& fields, v1::Messages* messages) {
  bool continues = false;
  RETURN_IF_ERROR(fields.Bool("continue_final_message", [&continues](bool value) { continues = value; }));
  if (!continues || messages->messages().empty()) return absl::OkStatus();
  const auto bad = [&](absl::string_view why) {
    return rpc::BadField(fields.Name("continue_final_message"), why, "false", "true");
  };
  if (format_.channels()) return bad("is not supported for a model that writes in channels");
  const JsonFields::Json& last = fields.Find("messages")->back();
  if (last["role"] != "assistant" || !last.contains("content") || last["content"].is_null() ||
      !last.value("tool_calls", JsonFields::Json()).is_null())
    return bad("wants a last message of the assistant, with content and without tool calls");
  if (last["content"].is_string()) continued_ = last["content"];
  for (size_t i = 0; last["content"].is_array() && i < last["content"].size(); ++i)
    absl::StrAppend(&continued_, i == 0 ? "" : "\n", last["content"][i]["text"].get_ref<const std::string&>());
  messages->mutable_messages()->RemoveLast();
  messages->set_add_generation_prompt(true);
  return absl::OkStatus();
}

absl::Status ChatResponseWriter::PrepareOutput(const JsonFields& fields, v1::GenerateRequest* message) {
  ToolChoice choice;
  RETURN_IF_ERROR(ReadTools(fields, &choice));
  if (choice.tools != nullptr) tools_ = text::ToolTypes(*choice.tools);
  one_call_ = !choice.may_be_many;
  constrained_ = message->has_constraint();
  if (choice.is_required) {
    RETURN_IF_ERROR(ForceCall(fields, choice));
  } else if (format_.tools != nullptr && !constrained_ && HasStrictFunction(choice)) {
    RETURN_IF_ERROR(HoldCalls(choice));
  }
  if (calls_.has_value()) constraint_field_ = "tools";
  if (format_.needs_special_tokens() && !message->has_skip_special_tokens()) message->set_skip_special_tokens(false);
  skip_special_tokens_ = !message->has_skip_special_tokens() || message->skip_special_tokens();
  if (format_.tools == nullptr || text_->tokenizer() == nullptr || message->ignore_eos()) return absl::OkStatus();
  for (const absl::string_view token : format_.tools->end_tokens) {
    if (const int32_t id = text_->tokenizer()->TokenToId(token); id >= 0) message->add_stop_token_ids(id);
  }
  return absl::OkStatus();
}

std::string ChatResponseWriter::BeginOutput(const std::string& rendered) {
  reasoning_ = text::ReasoningAfterPrompt(format_, rendered);
  if (forced_.empty() && constrained_ && format_.channels()) forced_ = std::string(text::kFinalChannel);
  const std::string& begins = continued_.empty() ? forced_ : continued_;
  if (begins.empty()) return "";
  const bool closes = std::exchange(reasoning_, text::ReasoningStart::kOver) == text::ReasoningStart::kOpen;
  return closes ? absl::StrCat("\n", format_.reasoning->close, "\n\n", begins) : begins;
}

std::optional<ConstraintSpec> ChatResponseWriter::Constrain(std::optional<ConstraintSpec> spec) {
  if (calls_.has_value()) spec = calls_;
  if (calls_.has_value() && !forced_.empty()) return spec;
  if (!forced_.empty()) return format_.channels() ? spec : std::nullopt;
  const text::ReasoningFormat* const format = format_.reasoning;
  if (!spec.has_value() || reasoning_ == text::ReasoningStart::kOver || format == nullptr || !text_->has_tokenizer())
    return spec;
  const bool is_open = reasoning_ == text::ReasoningStart::kOpen;
  spec->reasoning = {.open = is_open ? "" : MarkSpecialTokens(*text_->tokenizer(), format->open),
                     .close = MarkSpecialTokens(*text_->tokenizer(), format->close),
                     .may_be = !is_open};
  if (calls_.has_value() && format_.tools->ends_reasoning) {
    for (const text::CallOpener& opener : format_.tools->openers) spec->reasoning.without.emplace_back(opener.marker);
  }
  return spec;
}

AssistantOutput ChatResponseWriter::NewOutput(bool whole, std::string call_prefix) const {
  AssistantOutput output(format_, {.tools = tools_, .whole_calls = whole, .reasoning = reasoning_},
                         std::move(call_prefix));
  output.Begin(forced_);
  if (one_call_) output.KeepOneCall();
  output.CountReasoning(text_->tokenizer(), skip_special_tokens_);
  return output;
}

}  // namespace switchyard::server
