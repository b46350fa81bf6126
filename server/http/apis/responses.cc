#include "server/http/apis/responses.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "server/http/apis/chat.h"
#include "server/http/apis/chat_request.h"
#include "server/http/apis/openai_request.h"

namespace switchyard::server {
namespace {

using Json = JsonFields::Json;

// --- the request, as that of chat completions ---

absl::StatusOr<std::string> TextOfResponsesParts(const std::string& path, const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return rpc::BadField(path, "must be a string or an array of parts", "a string", "");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const Json type = part.is_object() ? part.value("type", Json()) : Json();
    const bool is_text = type == "input_text" || type == "output_text" || type == "text";
    if (!is_text || !part.value("text", Json()).is_string()) {
      return rpc::BadField(absl::StrCat(path, "[", i, "].type"),
                           absl::StrCat("must be input_text or output_text, is ", JsonText(type)), "input_text",
                           JsonText(type));
    }
    absl::StrAppend(&text, text.empty() ? "" : "\n", part["text"].get_ref<const std::string&>());
  }
  return text;
}

absl::Status ConvertResponsesItem(const std::string& path, const Json& item, Json* messages) {
  if (!item.is_object()) return rpc::BadField(path, "must be an object", "an object", JsonText(item).substr(0, 60));
  Json type = item.value("type", Json());
  if (type.is_null()) type = "message";
  if (type == "reasoning") return absl::OkStatus();
  if (type == "item_reference") {
    return rpc::BadField(absl::StrCat(path, ".type"),
                         "item_reference is not supported: this server stores nothing; send the item", "message",
                         JsonText(type));
  }
  if (type == "function_call_output") {
    ASSIGN_OR_RETURN(const std::string output,
                     TextOfResponsesParts(absl::StrCat(path, ".output"), item.value("output", Json(""))));
    messages->push_back({{"role", "tool"}, {"tool_call_id", item.value("call_id", Json(""))}, {"content", output}});
    return absl::OkStatus();
  }
  if (type == "function_call") {
    const Json call = {
        {"id", item.value("call_id", Json(""))},
        {"type", "function"},
        {"function", {{"name", item.value("name", Json(""))}, {"arguments", item.value("arguments", Json("{}"))}}}};
    // Calls of one turn are one message.
    if (!messages->empty() && messages->back().contains("tool_calls")) {
      messages->back()["tool_calls"].push_back(call);
    } else {
      messages->push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}});
    }
    return absl::OkStatus();
  }
  if (type != "message") {
    return rpc::BadField(
        absl::StrCat(path, ".type"),
        absl::StrCat("must be message, function_call, function_call_output or reasoning, is ", JsonText(type)),
        "message", JsonText(type));
  }
  ASSIGN_OR_RETURN(const std::string text,
                   TextOfResponsesParts(absl::StrCat(path, ".content"), item.value("content", Json())));
  Json role = item.value("role", Json());
  if (!role.is_string() || role == "")
    return JsonFields(item, absl::StrCat(path, ".")).Wrong("role", "the name of a role", role);
  if (role == "developer") role = "system";
  messages->push_back({{"role", role}, {"content", text}});
  return absl::OkStatus();
}

absl::Status ConvertResponsesTools(const JsonFields& fields, Json* out) {
  const Json* tools = nullptr;
  RETURN_IF_ERROR(fields.Array("tools", &tools));
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string path = absl::StrCat("tools[", i, "]");
    if (!tool.is_object()) return fields.Wrong(path, "an object", tool);
    const JsonFields inner(tool, absl::StrCat(path, "."));
    if (const Json type = tool.value("type", Json()); type != "function")
      return inner.Wrong("type", "\"function\", the only kind that is served here", type);
    if (const Json name = tool.value("name", Json()); !name.is_string()) return inner.Wrong("name", "a string", name);
    Json function = {{"name", tool["name"]}};
    for (const char* const key : {"description", "parameters", "strict"}) {
      if (tool.contains(key)) function[key] = tool[key];
    }
    (*out)["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  const Json* const choice = fields.Find("tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  (*out)["tool_choice"] = *choice;
  if (choice->is_object())
    (*out)["tool_choice"] = {{"type", "function"}, {"function", {{"name", choice->value("name", Json())}}}};
  return absl::OkStatus();
}

// What `include` asks for and nothing here has.
absl::Status RefuseIncluded(const JsonFields& fields) {
  const Json* include = nullptr;
  RETURN_IF_ERROR(fields.Array("include", &include));
  for (size_t i = 0; include != nullptr && i < include->size(); ++i) {
    if ((*include)[i] == "message.output_text.logprobs") {
      return rpc::BadField(absl::StrCat("include[", i, "]"), "logprobs are not supported; chat completions have them",
                           "", JsonText((*include)[i]));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ConvertResponsesBody(const Json& json) {
  const JsonFields fields(json);
  Json out = {{"messages", Json::array()}};
  RETURN_IF_ERROR(
      RefuseSet(fields, "previous_response_id", "is not supported: this server stores nothing; send all items"));
  RETURN_IF_ERROR(RefuseSet(fields, "conversation", "is not supported: this server stores nothing"));
  for (const char* const key : {"background", "prompt", "top_logprobs"})
    RETURN_IF_ERROR(RefuseSet(fields, key, "is not supported"));
  RETURN_IF_ERROR(RefuseIncluded(fields));
  for (const char* const key :
       {"model", "temperature", "top_p", "stream", "top_k", "seed", "chat_template_kwargs", "parallel_tool_calls"}) {
    if (const Json* const value = fields.Find(key); value != nullptr) out[key] = *value;
  }
  RETURN_IF_ERROR(fields.String("instructions", [&](const std::string& text) {
    out["messages"].push_back({{"role", "system"}, {"content", text}});
  }));
  const Json* const input = fields.Find("input");
  if (input == nullptr) return rpc::BadField("input", "is missing", "1", "0");
  if (input->is_string()) {
    out["messages"].push_back({{"role", "user"}, {"content", *input}});
  } else if (input->is_array()) {
    if (input->empty()) return rpc::BadField("input", "is empty", "1", "0");
    for (size_t i = 0; i < input->size(); ++i)
      RETURN_IF_ERROR(ConvertResponsesItem(absl::StrCat("input[", i, "]"), (*input)[i], &out["messages"]));
    if (out["messages"].empty()) return rpc::BadField("input", "has no message", "1", "0");
  } else {
    return fields.Wrong("input", "a string or an array of items", *input);
  }
  RETURN_IF_ERROR(fields.Integer(
      "max_output_tokens", [&](int64_t value) { out["max_tokens"] = value; }, 1));
  const Json* reasoning = nullptr;
  RETURN_IF_ERROR(fields.Object("reasoning", &reasoning));
  if (reasoning != nullptr && reasoning->value("effort", Json()).is_string())
    out["reasoning_effort"] = (*reasoning)["effort"];
  const Json *const text = fields.Find("text"), *format = nullptr;
  // Not as "text", which is what gRPC calls the prompt (api_errors.cc).
  if (text != nullptr && !text->is_object()) return fields.Wrong("text.format", "in an object", *text);
  if (text != nullptr) RETURN_IF_ERROR(JsonFields(*text, "text.").Object("format", &format));
  if (format != nullptr) RETURN_IF_ERROR(ConvertFormat(*format, "text.format", &out));
  RETURN_IF_ERROR(ConvertResponsesTools(fields, &out));
  return out;
}

// --- the answer ---

class ResponsesWriter final : public ChatResponseWriter {
 public:
  ResponsesWriter(const text::TextProcessor* text, int64_t created) : ChatResponseWriter(text), created_(created) {}

  absl::StatusOr<std::vector<v1::GenerateRequest>> Parse(const std::string& body) override;
  bool streams() const override { return streams_; }
  std::string Add(size_t prompt, const v1::GenerateResponse& message) override;
  std::string Finish() override;
  std::string Fail(const absl::Status& status) override {
    return Event("error", {{"code", "server_error"}, {"message", std::string(status.message())}, {"param", nullptr}});
  }

 private:
  std::string Event(const char* type, Json data) {
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(data);
    return absl::StrCat("event: ", type, "\n", server::Event(event));
  }
  Json Body(const char* status) const;
  std::string ItemId(size_t index) const;
  Json Item(size_t index, const OutputPart& part, bool is_done) const;
  AssistantOutput::Events StreamEvents(std::string* events);

  const int64_t created_;
  Json request_;  // as it came
  bool streams_ = false, begun_ = false;
  int64_t sequence_ = 0;
  std::unique_ptr<AssistantOutput> output_;
  std::string id_, model_;
  bool is_complete_ = true;
  Json usage_ = nullptr;
};

absl::StatusOr<std::vector<v1::GenerateRequest>> ResponsesWriter::Parse(const std::string& body) {
  RETURN_IF_ERROR(ParseBody(body, &request_));
  ASSIGN_OR_RETURN(const Json json, ConvertResponsesBody(request_));
  const JsonFields fields(json);
  std::vector<v1::GenerateRequest> requests(1);
  v1::GenerateRequest* const message = &requests.front();
  RETURN_IF_ERROR(ReadChat(fields, message));
  if (absl::StartsWith(constraint_field_, "response_format")) constraint_field_ = "text.format";
  RETURN_IF_ERROR(fields.Bool("stream", [this](bool value) { streams_ = value; }));
  RETURN_IF_ERROR(
      fields.Integer("max_tokens", [&](int64_t value) { message->set_max_tokens(static_cast<int32_t>(value)); }));
  return requests;
}

std::string ResponsesWriter::ItemId(size_t index) const { return absl::StrCat("item_", id_.substr(5), "_", index); }

Json ResponsesWriter::Item(size_t index, const OutputPart& part, bool is_done) const {
  const std::string text = is_done ? part.text : "";
  const bool is_cut = !is_complete_ && index + 1 == output_->parts().size();
  const char* const status = !is_done ? "in_progress" : part.is_whole && !is_cut ? "completed" : "incomplete";
  Json content = Json::array();
  switch (part.kind) {
    case OutputPart::Kind::kReasoning:
      if (is_done) content.push_back({{"type", "reasoning_text"}, {"text", text}});
      return {{"id", ItemId(index)},
              {"type", "reasoning"},
              {"summary", Json::array()},
              {"content", content},
              {"status", status}};
    case OutputPart::Kind::kCall:
      return {{"id", ItemId(index)}, {"type", "function_call"}, {"call_id", part.id},
              {"name", part.name},   {"arguments", text},       {"status", status}};
    default:
      if (is_done) content.push_back({{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}});
      return {
          {"id", ItemId(index)}, {"type", "message"}, {"role", "assistant"}, {"content", content}, {"status", status}};
  }
}

Json ResponsesWriter::Body(const char* status) const {
  const auto given = [this](const char* key, Json otherwise) {
    const auto member = request_.find(key);
    return member == request_.end() || member->is_null() ? otherwise : *member;
  };
  Json body = {{"id", id_}, {"object", "response"}, {"created_at", created_}, {"status", status}, {"error", nullptr}};
  body["incomplete_details"] = nullptr;
  if (std::string(status) == "incomplete") body["incomplete_details"] = {{"reason", "max_output_tokens"}};
  body["instructions"] = given("instructions", nullptr);
  body["max_output_tokens"] = given("max_output_tokens", nullptr);
  body["model"] = model_;
  body["output"] = Json::array();
  const bool is_over = std::string(status) != "in_progress";
  for (size_t i = 0; is_over && output_ != nullptr && i < output_->parts().size(); ++i)
    body["output"].push_back(Item(i, output_->parts()[i], true));
  body["parallel_tool_calls"] = given("parallel_tool_calls", true);
  body["previous_response_id"] = nullptr;
  body["reasoning"] = given("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  body["store"] = false;
  body["temperature"] = given("temperature", nullptr);
  body["text"] = given("text", {{"format", {{"type", "text"}}}});
  body["tool_choice"] = given("tool_choice", "auto");
  body["tools"] = given("tools", Json::array());
  body["top_p"] = given("top_p", nullptr);
  body["truncation"] = "disabled";
  body["usage"] = usage_;
  body["user"] = given("user", nullptr);
  body["metadata"] = given("metadata", Json::object());
  return body;
}

AssistantOutput::Events ResponsesWriter::StreamEvents(std::string* events) {
  using Kind = OutputPart::Kind;
  const auto place = [this](size_t index) { return Json{{"item_id", ItemId(index)}, {"output_index", index}}; };
  const auto part_of = [](const OutputPart& part, bool is_done) {
    const std::string text = is_done ? part.text : "";
    if (part.kind == Kind::kReasoning) return Json{{"type", "reasoning_text"}, {"text", text}};
    return Json{{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}};
  };
  const auto with = [](Json data, Json more) {
    data.update(more);
    return data;
  };
  AssistantOutput::Events on;
  on.on_begin = [=, this](size_t index, const OutputPart& part) {
    *events += Event("response.output_item.added", {{"output_index", index}, {"item", Item(index, part, false)}});
    if (part.kind == Kind::kCall) return;
    *events += Event("response.content_part.added",
                     with(place(index), {{"content_index", 0}, {"part", part_of(part, false)}}));
  };
  on.on_text = [=, this](size_t index, const OutputPart& part, absl::string_view piece) {
    const std::string text(piece);
    if (part.kind == Kind::kCall) {
      *events += Event("response.function_call_arguments.delta", with(place(index), {{"delta", text}}));
      return;
    }
    const bool is_text = part.kind == Kind::kText;
    Json data = with(place(index), {{"content_index", 0}, {"delta", text}});
    if (is_text) data["logprobs"] = Json::array();
    *events += Event(is_text ? "response.output_text.delta" : "response.reasoning_text.delta", std::move(data));
  };
  on.on_end = [=, this](size_t index, const OutputPart& part) {
    if (part.kind == Kind::kCall) {
      *events += Event("response.function_call_arguments.done",
                       with(place(index), {{"name", part.name}, {"arguments", part.text}}));
    } else {
      const bool is_text = part.kind == Kind::kText;
      Json data = with(place(index), {{"content_index", 0}, {"text", part.text}});
      if (is_text) data["logprobs"] = Json::array();
      *events += Event(is_text ? "response.output_text.done" : "response.reasoning_text.done", std::move(data));
      *events += Event("response.content_part.done",
                       with(place(index), {{"content_index", 0}, {"part", part_of(part, true)}}));
    }
    *events += Event("response.output_item.done", {{"output_index", index}, {"item", Item(index, part, true)}});
  };
  return on;
}

std::string ResponsesWriter::Add(size_t, const v1::GenerateResponse& message) {
  std::string events;
  if (!std::exchange(begun_, true)) {
    id_ = ResponseId("resp_", message.request_id());
    model_ = message.model();
    output_ = std::make_unique<AssistantOutput>(NewOutput(!streams_, absl::StrCat("call_", id_.substr(5), "_")));
    if (streams_) {
      events += Event("response.created", {{"response", Body("in_progress")}});
      events += Event("response.in_progress", {{"response", Body("in_progress")}});
    }
  }
  if (message.has_finish()) is_complete_ = message.finish().reason() == v1::FINISH_REASON_STOP;
  output_->Add(message, streams_ ? StreamEvents(&events) : AssistantOutput::Events());
  if (message.has_finish()) {
    const v1::Usage& usage = message.finish().usage();
    usage_ = {{"input_tokens", usage.prompt_tokens()},
              {"input_tokens_details", {{"cached_tokens", usage.cached_tokens()}, {"cache_write_tokens", 0}}},
              {"output_tokens", usage.completion_tokens()},
              {"output_tokens_details", {{"reasoning_tokens", output_->reasoning_tokens()}}},
              {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()}};
  }
  return events;
}

std::string ResponsesWriter::Finish() {
  const Json body = Body(is_complete_ ? "completed" : "incomplete");
  if (!streams_) return JsonText(body);
  return Event(is_complete_ ? "response.completed" : "response.incomplete", {{"response", body}});
}

}  // namespace

std::unique_ptr<ResponseWriter> NewResponsesWriter(const text::TextProcessor* text, int64_t created) {
  return std::make_unique<ResponsesWriter>(text, created);
}

}  // namespace switchyard::server
