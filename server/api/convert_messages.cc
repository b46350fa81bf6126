#include "server/api/convert_messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/strict_json.h"

namespace switchyard::server {
namespace {

using nlohmann::ordered_json;

constexpr int kMaxMessages = 4096;
constexpr int kMaxTools = 512;
constexpr int kMaxJsonDepth = 64;

absl::StatusOr<ordered_json> ParseObject(const std::string& field, const std::string& text) {
  ordered_json value;
  const std::optional<JsonFault> fault = ReadJson(text, LenientJson(kMaxJsonDepth, kMaxJsonKeys), &value);
  if (!fault && value.is_object()) return value;
  if (fault && fault->kind == JsonFault::Kind::kDepth) {
    return rpc::BadField(field, fault->reason, absl::StrCat(kMaxJsonDepth), absl::StrCat(fault->depth));
  }
  if (fault && fault->kind == JsonFault::Kind::kKeys) {
    return rpc::BadField(field, fault->reason, absl::StrCat(kMaxJsonKeys), absl::StrCat(fault->keys));
  }
  return rpc::BadField(field, absl::StrCat("must be a JSON object, is ", Quote(text)), "a JSON object", Quote(text));
}

absl::StatusOr<ordered_json> ConvertMessage(const v1::ChatMessage& message, int index) {
  ordered_json out = ordered_json::object();
  if (!message.role().empty()) out["role"] = message.role();
  if (message.has_content()) out["content"] = message.content();
  if (!message.extra_json().empty()) {
    ASSIGN_OR_RETURN(const ordered_json extra,
                     ParseObject(absl::StrCat("messages[", index, "].extra_json"), message.extra_json()));
    for (const auto& [key, value] : extra.items()) out[key] = value;
  }
  const auto role = out.find("role");
  if (role == out.end() || *role == "") {
    return rpc::BadField(absl::StrCat("messages[", index, "].role"), "is empty", "a role", "");
  }
  return out;
}

v1::TokenLogprob ToProto(const batching::TokenLogprob& in, const text::TextProcessor& text) {
  v1::TokenLogprob out;
  out.set_token_id(in.token);
  tokenizer::TokenPiece piece = text.PieceOf(in.token);
  out.set_text(std::move(piece.text));
  out.set_bytes(std::move(piece.bytes));
  out.set_logprob(in.logprob);
  out.set_rank(in.rank);
  return out;
}

template <class Out>
void FillLogprobs(const std::vector<batching::PositionLogprobs>& in, const text::TextProcessor& text, Out* out) {
  for (const batching::PositionLogprobs& position : in) {
    v1::PositionLogprobs* to = out->Add();
    *to->mutable_chosen() = ToProto(position.chosen, text);
    for (const batching::TokenLogprob& top : position.top) *to->add_top() = ToProto(top, text);
  }
}

v1::FinishReason ToProto(batching::FinishReason reason) {
  switch (reason) {
    case batching::FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case batching::FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    default:
      return v1::FINISH_REASON_ABORT;
  }
}

// Ends a chat template that takes too long.
absl::Status MustEnd(const ConvertArgs& args) {
  if (args.cancelled && args.cancelled()) return absl::CancelledError("the client cancelled");
  if (!args.clock || args.clock() < args.deadline) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "still rendering at the call's deadline, ", absl::FormatDuration(args.deadline - args.now),
      " after it was begun; send shorter messages, allow more time, or ask the operator to look at the template"));
}

}  // namespace

absl::Status CheckCount(const char* field, size_t count, const char* of_what, size_t limit) {
  if (count <= limit) return absl::OkStatus();
  return rpc::BadField(field, absl::StrCat(count, " ", of_what, ", limit ", limit), absl::StrCat(limit),
                       absl::StrCat(count));
}

absl::Status TextLimit(const char* field, const absl::Status& status) {
  return rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::TEXT_LIMIT,
                        absl::StrCat(field, ": ", status.message()), {{"field", field}});
}

absl::StatusOr<std::string> RenderMessages(const v1::Messages& messages, const ConvertArgs& args) {
  if (!args.text->has_chat_template()) {
    return rpc::MakeError(
        absl::StatusCode::kFailedPrecondition, v1::NO_CHAT_TEMPLATE,
        "messages: this model has no chat template; send text, or start the server with --chat_template=FILE",
        {{"field", "messages"}});
  }
  if (messages.messages_size() == 0) return rpc::BadField("messages", "is empty", "1", "0");
  RETURN_IF_ERROR(CheckCount("messages", messages.messages_size(), "messages", kMaxMessages));
  RETURN_IF_ERROR(CheckCount("messages.tools", messages.tools_size(), "tools", kMaxTools));
  text::ChatRequest request;
  if (!messages.template_args_json().empty()) {
    ASSIGN_OR_RETURN(request.template_args, ParseObject("messages.template_args_json", messages.template_args_json()));
  }
  request.messages = ordered_json::array();
  for (int i = 0; i < messages.messages_size(); ++i) {
    ASSIGN_OR_RETURN(ordered_json message, ConvertMessage(messages.messages(i), i));
    request.messages.push_back(std::move(message));
  }
  const bool empty_tools = request.template_args.is_object() && request.template_args.contains("tools") &&
                           request.template_args["tools"] == ordered_json::array();
  if (messages.tools_size() > 0 || empty_tools) request.tools = ordered_json::array();
  for (int i = 0; i < messages.tools_size(); ++i) {
    ASSIGN_OR_RETURN(ordered_json tool, ParseObject(absl::StrCat("messages.tools[", i, "]"), messages.tools(i)));
    request.tools.push_back(std::move(tool));
  }
  request.add_generation_prompt = !messages.has_add_generation_prompt() || messages.add_generation_prompt();
  const text::ChatTemplateClock clock = {args.wall_now, absl::UTCTimeZone(), [&args] { return MustEnd(args); }};
  absl::StatusOr<std::string> rendered = args.text->Render(request, clock);
  if (absl::IsResourceExhausted(rendered.status())) return TextLimit("messages", rendered.status());
  if (absl::IsDeadlineExceeded(rendered.status()) || absl::IsCancelled(rendered.status())) {
    return absl::Status(rendered.status().code(), absl::StrCat("messages: ", rendered.status().message()));
  }
  if (!rendered.ok()) {
    return rpc::MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_FIELD,
                          absl::StrCat("messages: ", rendered.status().message()), {{"field", "messages"}});
  }
  RETURN_IF_ERROR(CheckCount("messages", rendered->size(), "bytes", args.limits.max_prompt_bytes));
  return rendered;
}

v1::GenerateResponse ToProto(OutputChunk chunk, const text::TextProcessor& text) {
  v1::GenerateResponse message;
  message.set_choice(chunk.choice);
  message.set_index(chunk.index);
  message.mutable_token_ids()->Add(chunk.tokens.begin(), chunk.tokens.end());
  message.set_text(std::move(chunk.text));
  FillLogprobs(chunk.logprobs, text, message.mutable_logprobs());
  FillLogprobs(chunk.prompt_logprobs, text, message.mutable_prompt_logprobs());
  if (const ExpertPaths& paths = chunk.expert_paths; !paths.experts.empty()) {
    v1::ExpertPaths* to = message.mutable_expert_paths();
    to->set_first_position(paths.first_position);
    to->set_num_moe_layers(paths.num_moe_layers);
    to->set_top_k(paths.top_k);
    to->set_experts(paths.experts.data(), paths.experts.size() * sizeof(int16_t));
  }
  if (!chunk.finished) return message;
  v1::Finish* finish = message.mutable_finish();
  finish->set_reason(ToProto(chunk.reason));
  if (chunk.stop_token >= 0) finish->set_stop_token_id(chunk.stop_token);
  if (!chunk.stop_string.empty()) finish->set_stop_string(chunk.stop_string);
  finish->mutable_usage()->set_prompt_tokens(chunk.usage.prompt_tokens);
  finish->mutable_usage()->set_completion_tokens(chunk.usage.completion_tokens);
  finish->mutable_usage()->set_cached_tokens(chunk.usage.cached_tokens);
  finish->mutable_timings()->set_queue_seconds(absl::ToDoubleSeconds(chunk.timings.Queue()));
  finish->mutable_timings()->set_prefill_seconds(absl::ToDoubleSeconds(chunk.timings.Prefill()));
  finish->mutable_timings()->set_decode_seconds(absl::ToDoubleSeconds(chunk.timings.Decode()));
  return message;
}

}  // namespace switchyard::server
