#include "server/http/apis/chat.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "server/http/apis/chat_request.h"
#include "server/http/apis/openai_request.h"

namespace switchyard::server {
namespace {

using Json = JsonFields::Json;

Json TokenJson(const v1::TokenLogprob& token) {
  Json bytes = Json::array();
  for (const char byte : token.bytes()) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", token.text()}, {"logprob", token.logprob()}, {"bytes", std::move(bytes)}};
}

Json PositionJson(const v1::PositionLogprobs& position, int top) {
  Json json = TokenJson(position.chosen());
  json["top_logprobs"] = Json::array();
  for (int i = 0; i < position.top_size() && i < top; ++i) json["top_logprobs"].push_back(TokenJson(position.top(i)));
  return json;
}

class ChatWriter final : public ChatResponseWriter {
 public:
  ChatWriter(const text::TextProcessor* text, int64_t created) : ChatResponseWriter(text), created_(created) {}

  absl::StatusOr<std::vector<v1::GenerateRequest>> Parse(const std::string& body) override;
  bool streams() const override { return options_.stream; }
  void SetPromptTokens(size_t, int64_t tokens) override { prompt_tokens_ = tokens; }
  std::string Add(size_t prompt, const v1::GenerateResponse& message) override;
  std::string Finish() override;
  std::string Fail(const absl::Status& status) override {
    return absl::StrCat("data: ", ErrorBody(ErrorShape::kOpenAi, status), "\n\n", kDone);
  }

 private:
  struct Choice {
    std::unique_ptr<AssistantOutput> output;
    Json logprobs = Json::array();
    Json finish = nullptr, stop_reason = nullptr;
    int64_t tokens = 0;  // so far
    bool begun = false;
  };
  absl::Status ReadLengths(const JsonFields& fields, v1::GenerateRequest* message);
  Json Head(const char* object) const;
  // The event of a delta with these members; `finish`: the choice has ended.
  std::string DeltaEvent(int index, absl::string_view delta, const Json& logprobs, bool finish) const;

  // The output of a choice, made at its first message.
  AssistantOutput* OutputOf(int index);
  // What a message adds to its choice: the members of deltas, as text.
  std::vector<std::string> Deltas(const v1::GenerateResponse& message);
  Json MessageOf(const Choice& choice) const;

  const int64_t created_;
  StreamOptions options_;
  int top_logprobs_ = -1;  // < 0: no logprobs
  bool shows_prompt_logprobs_ = false;
  std::vector<v1::PositionLogprobs> prompt_logprobs_;
  size_t num_choices_ = 1;
  std::vector<Choice> choices_;  // none before the first message: by then their number is checked
  std::string id_, model_;
  std::string event_head_;  // the members of events that are always the same
  int64_t prompt_tokens_ = 0;
  UsageSum usage_ = {.reasoning_tokens = 0};
};

absl::Status ChatWriter::ReadLengths(const JsonFields& fields, v1::GenerateRequest* message) {
  const auto set = [message](int64_t value) { message->set_max_tokens(static_cast<int32_t>(value)); };
  RETURN_IF_ERROR(fields.Integer("max_tokens", set));
  RETURN_IF_ERROR(fields.Integer("max_completion_tokens", set));
  bool logprobs = false;
  RETURN_IF_ERROR(fields.Bool("logprobs", [&](bool value) { logprobs = value; }));
  if (logprobs) top_logprobs_ = 0;
  RETURN_IF_ERROR(fields.Integer(
      "top_logprobs", [this](int64_t value) { top_logprobs_ = static_cast<int>(value); }, 0, 20));
  if (top_logprobs_ > 0 && !logprobs)
    return rpc::BadField("top_logprobs", "is allowed with \"logprobs\": true only", "logprobs", "false");
  if (!logprobs) top_logprobs_ = -1;
  if (logprobs) message->set_logprobs(top_logprobs_);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::GenerateRequest>> ChatWriter::Parse(const std::string& body) {
  Json json;
  RETURN_IF_ERROR(ParseBody(body, &json));
  const JsonFields fields(json);
  std::vector<v1::GenerateRequest> requests(1);
  v1::GenerateRequest* const message = &requests.front();
  RETURN_IF_ERROR(ReadChat(fields, message));
  RETURN_IF_ERROR(ReadStreamOptions(fields, &options_));
  RETURN_IF_ERROR(ReadLengths(fields, message));
  RETURN_IF_ERROR(RefuseSet(fields, "functions", "is not supported; use tools"));
  RETURN_IF_ERROR(RefuseSet(fields, "chat_template", "is not supported: the server's holds (--chat_template)"));
  for (const char* key : {"audio", "documents"}) RETURN_IF_ERROR(RefuseSet(fields, key, "is not supported"));
  RETURN_IF_ERROR(fields.Bool("add_special_tokens", [&](bool value) { message->set_add_special_tokens(value); }));
  shows_prompt_logprobs_ = message->has_prompt_logprobs();
  if (message->n() > 0) num_choices_ = static_cast<size_t>(message->n());
  return requests;
}

Json ChatWriter::Head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

std::string ChatWriter::DeltaEvent(int index, absl::string_view delta, const Json& logprobs, bool finish) const {
  const Choice& choice = choices_[static_cast<size_t>(index)];
  std::string text =
      absl::StrCat("\"index\":", index, ",\"delta\":{", delta,
                   "},\"logprobs\":", logprobs.is_null() ? "null" : JsonText(logprobs), ",\"finish_reason\":");
  if (finish) {
    absl::StrAppend(&text, JsonText(choice.finish), ",\"stop_reason\":", JsonText(choice.stop_reason));
  } else {
    text += "null";
  }
  return ChoiceEvent(event_head_, text, options_, {prompt_tokens_, choice.tokens});
}

AssistantOutput* ChatWriter::OutputOf(int index) {
  std::unique_ptr<AssistantOutput>& output = choices_[static_cast<size_t>(index)].output;
  if (output == nullptr) {
    output = std::make_unique<AssistantOutput>(
        NewOutput(!options_.stream, absl::StrCat("call_", id_.substr(id_.find('-') + 1), "_", index, "_")));
  }
  return output.get();
}

std::vector<std::string> ChatWriter::Deltas(const v1::GenerateResponse& message) {
  using Kind = OutputPart::Kind;
  std::vector<std::string> deltas;
  int call = -1;
  AssistantOutput* const output = OutputOf(message.choice());
  for (const OutputPart& part : output->parts()) call += part.kind == Kind::kCall ? 1 : 0;
  output->Add(message,
              {.on_begin =
                   [&](size_t, const OutputPart& part) {
                     if (part.kind != Kind::kCall) return;
                     deltas.push_back(MembersText({{"tool_calls",
                                                    {{{"index", ++call},
                                                      {"id", part.id},
                                                      {"type", "function"},
                                                      {"function", {{"name", part.name}, {"arguments", ""}}}}}}}));
                   },
               .on_text =
                   [&](size_t, const OutputPart& part, absl::string_view text) {
                     const std::string piece = JsonText(Json(std::string(text)));
                     if (part.kind == Kind::kText) deltas.push_back("\"content\":" + piece);
                     if (part.kind == Kind::kReasoning) deltas.push_back("\"reasoning_content\":" + piece);
                     if (part.kind != Kind::kCall) return;
                     deltas.push_back(absl::StrCat("\"tool_calls\":[{\"index\":", call,
                                                   ",\"function\":{\"arguments\":", piece, "}}]"));
                   }});
  return deltas;
}

Json ChatWriter::MessageOf(const Choice& choice) const {
  Json message = {{"role", "assistant"}, {"content", nullptr}, {"refusal", nullptr}};
  if (choice.output == nullptr) return message;
  const std::string content = choice.output->TextOf(OutputPart::Kind::kText);
  const std::string reasoning = choice.output->TextOf(OutputPart::Kind::kReasoning);
  if (!content.empty() || !choice.output->has_calls()) message["content"] = content;
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  for (const OutputPart& part : choice.output->parts()) {
    if (part.kind != OutputPart::Kind::kCall) continue;
    message["tool_calls"].push_back(
        {{"id", part.id}, {"type", "function"}, {"function", {{"name", part.name}, {"arguments", part.text}}}});
  }
  return message;
}

std::string ChatWriter::Add(size_t, const v1::GenerateResponse& message) {
  if (id_.empty()) {
    id_ = ResponseId("chatcmpl-", message.request_id());
    model_ = message.model();
    event_head_ = MembersText(Head("chat.completion.chunk"));
    choices_.resize(num_choices_);
  }
  prompt_logprobs_.insert(prompt_logprobs_.end(), message.prompt_logprobs().begin(), message.prompt_logprobs().end());
  if (message.token_ids_size() == 0 && !message.has_finish() && message.text().empty()) return "";
  const int index = message.choice();
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.tokens += message.token_ids_size();
  Json positions = Json::array();
  if (top_logprobs_ >= 0) {
    for (const v1::PositionLogprobs& position : message.logprobs())
      positions.push_back(PositionJson(position, top_logprobs_));
  }
  std::vector<std::string> deltas = Deltas(message);
  if (message.has_finish()) {
    const v1::Usage& usage = message.finish().usage();
    if (index == 0) {
      usage_.prompt_tokens = usage.prompt_tokens();
      usage_.cached_tokens = usage.cached_tokens();
    }
    usage_.completion_tokens += usage.completion_tokens();
    *usage_.reasoning_tokens += choice.output->reasoning_tokens();
    choice.finish = FinishName(message.finish().reason());
    if (choice.finish == "stop" && choice.output->has_calls()) choice.finish = "tool_calls";
    choice.stop_reason = StopReason(message.finish());
  }
  if (!options_.stream) {
    for (Json& position : positions) choice.logprobs.push_back(std::move(position));
    return "";
  }
  std::string events;
  const bool is_first = !std::exchange(choice.begun, true);
  if (deltas.empty() && (is_first || !positions.empty())) deltas.emplace_back(R"("content":"")");
  for (size_t i = 0; i < deltas.size(); ++i) {
    if (is_first && i == 0) deltas[i].insert(0, R"("role":"assistant",)");
    Json logprobs = nullptr;
    if (top_logprobs_ >= 0) logprobs = {{"content", i == 0 ? std::move(positions) : Json::array()}};
    events += DeltaEvent(index, deltas[i], logprobs, /*finish=*/false);
  }
  if (message.has_finish()) events += DeltaEvent(index, "", nullptr, /*finish=*/true);
  return events;
}

std::string ChatWriter::Finish() {
  if (options_.stream) {
    Json event = Head("chat.completion.chunk");
    event["choices"] = Json::array();
    event["usage"] = usage_.ToJson();
    return absl::StrCat(options_.include_usage ? Event(event) : "", kDone);
  }
  Json body = Head("chat.completion");
  body["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Json logprobs = nullptr;
    if (top_logprobs_ >= 0) logprobs = {{"content", std::move(choice.logprobs)}, {"refusal", nullptr}};
    body["choices"].push_back({{"index", i},
                               {"message", MessageOf(choice)},
                               {"logprobs", std::move(logprobs)},
                               {"finish_reason", choice.finish},
                               {"stop_reason", choice.stop_reason}});
  }
  body["usage"] = usage_.ToJson();
  if (shows_prompt_logprobs_) body["prompt_logprobs"] = PromptLogprobs(prompt_logprobs_);
  return JsonText(body);
}

}  // namespace

std::unique_ptr<ResponseWriter> NewChatWriter(const text::TextProcessor* text, int64_t created) {
  return std::make_unique<ChatWriter>(text, created);
}

}  // namespace switchyard::server
