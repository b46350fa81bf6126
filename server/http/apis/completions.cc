#include "server/http/apis/completions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "server/api/convert_messages.h"
#include "server/http/apis/openai_request.h"

namespace switchyard::server {
namespace {

using Json = JsonFields::Json;

constexpr int kDefaultTokens = 16;  // OpenAI's
constexpr size_t kMostPrompts = 256;

// Token ids of a prompt that is an array of integers.
absl::Status ReadIds(const JsonFields& fields, const std::string& name, const Json& ids, v1::TokenIds* to) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::optional<int64_t> id = IntegerIn(ids[i], INT32_MIN, INT32_MAX);
    if (!id.has_value()) return fields.Wrong(absl::StrCat(name, "[", i, "]"), "a token id", ids[i]);
    to->add_ids(static_cast<int32_t>(*id));
  }
  return absl::OkStatus();
}

size_t NumCharacters(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (static_cast<uint8_t>(byte) & 0xC0) != 0x80; }));
}

// Logprobs as this API has them: parallel lists.
class LogprobLists {
 public:
  void Add(const v1::PositionLogprobs& position, int top, size_t offset) {
    AddToken(position.chosen().text(), offset);
    token_logprobs_.push_back(position.chosen().logprob());
    Json tops = Json::object();
    for (int i = 0; i < position.top_size() && i < top; ++i) tops[position.top(i).text()] = position.top(i).logprob();
    tops[position.chosen().text()] = position.chosen().logprob();
    top_logprobs_.push_back(std::move(tops));
  }
  // The first token of a prompt, which nothing predicted.
  void AddFirst(const std::string& token) {
    AddToken(token, 0);
    token_logprobs_.push_back(nullptr);
    top_logprobs_.push_back(nullptr);
  }
  Json ToJson() const {
    return {{"text_offset", text_offset_},
            {"token_logprobs", token_logprobs_},
            {"tokens", tokens_},
            {"top_logprobs", top_logprobs_}};
  }

 private:
  void AddToken(const std::string& token, size_t offset) {
    tokens_.push_back(token);
    text_offset_.push_back(offset);
  }
  Json text_offset_ = Json::array(), token_logprobs_ = Json::array(), tokens_ = Json::array(),
       top_logprobs_ = Json::array();
};

class CompletionsWriter final : public ResponseWriter {
 public:
  CompletionsWriter(const text::TextProcessor* text, int64_t created) : text_(text), created_(created) {}

  absl::StatusOr<std::vector<v1::GenerateRequest>> Parse(const std::string& body) override;
  void Complete(v1::GenerateRequest* request) const override { request->MergeFrom(common_); }
  bool streams() const override { return options_.stream; }
  void SetPromptTokens(size_t prompt, int64_t tokens) override { prompts_[prompt].tokens = tokens; }
  std::string Add(size_t prompt, const v1::GenerateResponse& message) override;
  std::string Finish() override;
  std::string Fail(const absl::Status& status) override {
    return absl::StrCat("data: ", ErrorBody(ErrorShape::kOpenAi, status), "\n\n", kDone);
  }

 private:
  struct Prompt {
    std::string text;          // to be echoed
    std::vector<int32_t> ids;  // likewise, where logprobs are asked for
    std::vector<v1::PositionLogprobs> logprobs;
    int64_t tokens = 0;
  };
  struct Choice {
    std::string text;
    LogprobLists logprobs;
    Json finish = nullptr, stop_reason = nullptr;
    size_t characters = 0;  // of the text so far: offsets of tokens
    int64_t tokens = 0;     // so far
    bool begun = false;
  };
  static absl::Status ReadPrompts(const JsonFields& fields, std::vector<v1::GenerateRequest>* requests);
  absl::Status ReadLengths(const JsonFields& fields, v1::GenerateRequest* message);
  absl::Status ReadEcho(v1::GenerateRequest* request, Prompt* prompt) const;
  void AddLogprobs(const v1::PositionLogprobs& position, Choice* choice, LogprobLists* lists) const {
    lists->Add(position, logprobs_, choice->characters);
    choice->characters += NumCharacters(position.chosen().text());
  }
  Json ChoiceJson(size_t index, const std::string& text, const LogprobLists& logprobs) const;
  Json Head() const;

  const text::TextProcessor* const text_;
  const int64_t created_;
  v1::GenerateRequest common_;  // what the requests of all prompts have
  StreamOptions options_;
  bool echo_ = false, drops_output_ = false;
  int logprobs_ = -1;
  size_t num_choices_ = 1;              // of each prompt
  bool shows_prompt_logprobs_ = false;  // by vLLM's member prompt_logprobs
  std::vector<Prompt> prompts_;
  std::vector<Choice> choices_;  // none before the first message: by then their number is checked
  std::string id_, model_;
  std::string event_head_;  // the members of events that are always the same
  UsageSum usage_;
};

absl::Status CompletionsWriter::ReadPrompts(const JsonFields& fields, std::vector<v1::GenerateRequest>* requests) {
  const Json* const prompt = fields.Find("prompt");
  if (prompt == nullptr) return rpc::BadField("prompt", "is missing", "1", "0");
  const auto add = [&] { return &requests->emplace_back(); };
  if (prompt->is_string()) {
    add()->set_text(prompt->get<std::string>());
    return absl::OkStatus();
  }
  if (!prompt->is_array()) return fields.Wrong("prompt", "a string, strings, token ids or arrays of these", *prompt);
  if (prompt->empty()) return rpc::BadField("prompt", "is empty: at least one token is needed", "1", "0");
  if (prompt->front().is_number()) return ReadIds(fields, "prompt", *prompt, add()->mutable_token_ids());
  if (prompt->size() > kMostPrompts) {
    return rpc::BadField("prompt", absl::StrCat(prompt->size(), " prompts, limit ", kMostPrompts),
                         absl::StrCat(kMostPrompts), absl::StrCat(prompt->size()));
  }
  for (size_t i = 0; i < prompt->size(); ++i) {
    const Json& one = (*prompt)[i];
    const std::string name = absl::StrCat("prompt[", i, "]");
    if (one.is_string()) {
      add()->set_text(one.get<std::string>());
    } else if (one.is_array()) {
      RETURN_IF_ERROR(ReadIds(fields, name, one, add()->mutable_token_ids()));
    } else {
      return fields.Wrong(name, "a string or an array of token ids", one);
    }
  }
  return absl::OkStatus();
}

absl::Status CompletionsWriter::ReadLengths(const JsonFields& fields, v1::GenerateRequest* message) {
  RETURN_IF_ERROR(fields.Bool("echo", [this](bool value) { echo_ = value; }));
  int64_t max_tokens = kDefaultTokens;
  RETURN_IF_ERROR(fields.Integer("max_tokens", [&](int64_t value) { max_tokens = value; }));
  // To score a prompt nothing need be generated; the model makes a token that nobody sees.
  drops_output_ = echo_ && max_tokens == 0;
  message->set_max_tokens(drops_output_ ? 1 : static_cast<int32_t>(max_tokens));
  RETURN_IF_ERROR(fields.Integer("logprobs", [this](int64_t value) { logprobs_ = static_cast<int>(value); }));
  if (logprobs_ >= 0 || fields.Find("logprobs") != nullptr) message->set_logprobs(logprobs_);
  shows_prompt_logprobs_ = message->has_prompt_logprobs();
  if (logprobs_ >= 0 && echo_) message->set_prompt_logprobs(std::max(logprobs_, message->prompt_logprobs()));
  return absl::OkStatus();
}

// Logprobs are shown of all tokens of a prompt, also of the first, so the server must know which these are.
absl::Status CompletionsWriter::ReadEcho(v1::GenerateRequest* request, Prompt* prompt) const {
  if (request->has_text()) {
    prompt->text = request->text();
    if (logprobs_ < 0) return absl::OkStatus();
    const bool add_special = !common_.has_add_special_tokens() || common_.add_special_tokens();
    absl::StatusOr<std::vector<int32_t>> ids = text_->Encode(prompt->text, {add_special, /*allow_special=*/false});
    if (absl::IsResourceExhausted(ids.status())) return TextLimit("prompt", ids.status());
    ASSIGN_OR_RETURN(prompt->ids, std::move(ids));
    request->mutable_token_ids()->mutable_ids()->Add(prompt->ids.begin(), prompt->ids.end());
    return absl::OkStatus();
  }
  prompt->ids.assign(request->token_ids().ids().begin(), request->token_ids().ids().end());
  absl::StatusOr<std::string> text = text_->Decode(prompt->ids, /*skip_special_tokens=*/true);
  if (text.ok()) prompt->text = *std::move(text);  // bad ids are found later
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::GenerateRequest>> CompletionsWriter::Parse(const std::string& body) {
  Json json;
  RETURN_IF_ERROR(ParseBody(body, &json));
  const JsonFields fields(json);
  RETURN_IF_ERROR(ReadCommon(fields, &common_, &constraint_field_));
  RETURN_IF_ERROR(ReadStreamOptions(fields, &options_));
  RETURN_IF_ERROR(RefuseSet(fields, "suffix", "is not supported"));
  int64_t best_of = 1;
  RETURN_IF_ERROR(fields.Integer("best_of", [&](int64_t value) { best_of = value; }));
  if (common_.n() > 0) num_choices_ = static_cast<size_t>(common_.n());
  if (fields.Find("best_of") != nullptr && best_of != static_cast<int64_t>(num_choices_))
    return rpc::BadField("best_of", absl::StrCat("is ", best_of, "; only n, ", num_choices_, ", is supported"),
                         absl::StrCat(num_choices_), absl::StrCat(best_of));
  RETURN_IF_ERROR(ReadLengths(fields, &common_));
  RETURN_IF_ERROR(fields.Bool("add_special_tokens", [&](bool value) { common_.set_add_special_tokens(value); }));
  std::vector<v1::GenerateRequest> requests;
  RETURN_IF_ERROR(ReadPrompts(fields, &requests));
  if (requests.size() > 1) common_.clear_request_id();
  prompts_.resize(requests.size());
  for (size_t i = 0; echo_ && i < requests.size(); ++i) RETURN_IF_ERROR(ReadEcho(&requests[i], &prompts_[i]));
  return requests;
}

Json CompletionsWriter::Head() const {
  return {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", model_}};
}

Json CompletionsWriter::ChoiceJson(size_t index, const std::string& text, const LogprobLists& logprobs) const {
  const Choice& choice = choices_[index];
  return {{"index", index},
          {"text", text},
          {"logprobs", logprobs_ >= 0 ? logprobs.ToJson() : Json(nullptr)},
          {"finish_reason", choice.finish},
          {"stop_reason", choice.stop_reason}};
}

std::string CompletionsWriter::Add(size_t prompt_index, const v1::GenerateResponse& message) {
  if (id_.empty()) {
    id_ = ResponseId("cmpl-", message.request_id());
    model_ = message.model();
    event_head_ = MembersText(Head());
    choices_.resize(prompts_.size() * num_choices_);
    common_ = v1::GenerateRequest();  // all requests are complete
  }
  Prompt& prompt = prompts_[prompt_index];
  prompt.logprobs.insert(prompt.logprobs.end(), message.prompt_logprobs().begin(), message.prompt_logprobs().end());
  if (message.token_ids_size() == 0 && !message.has_finish() && message.text().empty()) return "";
  const size_t index = prompt_index * num_choices_ + static_cast<size_t>(message.choice());
  Choice& choice = choices_[index];
  std::string text;
  LogprobLists lists;
  LogprobLists* const to = options_.stream ? &lists : &choice.logprobs;
  if (!std::exchange(choice.begun, true) && echo_) {
    text = prompt.text;
    if (!prompt.ids.empty() && logprobs_ >= 0) {
      const std::string first = text_->PieceOf(prompt.ids[0]).text;
      to->AddFirst(first);
      choice.characters = NumCharacters(first);
      for (const v1::PositionLogprobs& position : prompt.logprobs) AddLogprobs(position, &choice, to);
    }
    choice.characters = NumCharacters(text);
  }
  if (!drops_output_) {
    text += message.text();
    choice.tokens += message.token_ids_size();
    for (const v1::PositionLogprobs& position : message.logprobs()) AddLogprobs(position, &choice, to);
  }
  if (message.has_finish()) {
    const v1::Usage& usage = message.finish().usage();
    if (message.choice() == 0) usage_.prompt_tokens += usage.prompt_tokens();
    if (message.choice() == 0) usage_.cached_tokens += usage.cached_tokens();
    if (!drops_output_) usage_.completion_tokens += usage.completion_tokens();
    choice.finish = drops_output_ ? "length" : FinishName(message.finish().reason());
    choice.stop_reason = StopReason(message.finish());
  }
  if (!options_.stream) {
    choice.text += text;
    return "";
  }
  return ChoiceEvent(
      event_head_,
      absl::StrCat("\"index\":", index, ",\"text\":", JsonText(Json(text)),
                   ",\"logprobs\":", logprobs_ >= 0 ? JsonText(lists.ToJson()) : "null",
                   ",\"finish_reason\":", JsonText(choice.finish), ",\"stop_reason\":", JsonText(choice.stop_reason)),
      options_, {prompt.tokens, choice.tokens});
}

std::string CompletionsWriter::Finish() {
  Json body = Head();
  body["choices"] = Json::array();
  if (options_.stream) {
    body["usage"] = usage_.ToJson();
    return absl::StrCat(options_.include_usage ? Event(body) : "", kDone);
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    Json choice = ChoiceJson(i, choices_[i].text, choices_[i].logprobs);
    if (shows_prompt_logprobs_) choice["prompt_logprobs"] = PromptLogprobs(prompts_[i / num_choices_].logprobs);
    body["choices"].push_back(std::move(choice));
  }
  body["usage"] = usage_.ToJson();
  return JsonText(body);
}

}  // namespace

std::unique_ptr<ResponseWriter> NewCompletionsWriter(const text::TextProcessor* text, int64_t created) {
  return std::make_unique<CompletionsWriter>(text, created);
}

}  // namespace switchyard::server
