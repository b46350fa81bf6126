#include "server/http/apis/anthropic.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"
#include "server/http/apis/chat.h"
#include "server/http/apis/chat_request.h"
#include "server/http/apis/openai_request.h"

namespace switchyard::server {
namespace {

using Json = JsonFields::Json;

// --- the request, as OpenAI's has it ---

absl::Status BadAnthropicBlock(const std::string& path, const Json& block) {
  const std::string type = block.is_object() && block.contains("type") ? JsonText(block["type"]) : "none";
  return rpc::BadField(absl::StrCat(path, ".type"),
                       absl::StrCat("must be text, thinking, tool_use or tool_result, is ", type), "text", type);
}

// The texts of a string, or of a list of blocks that are all text.
absl::StatusOr<std::string> TextOfBlocks(const std::string& path, const Json& content) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return rpc::BadField(path, "must be a string or an array of blocks", "a string", "");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& block = content[i];
    if (!block.is_object() || block.value("type", Json()) != "text" || !block.value("text", Json()).is_string())
      return BadAnthropicBlock(absl::StrCat(path, "[", i, "]"), block);
    absl::StrAppend(&text, text.empty() ? "" : "\n", block["text"].get_ref<const std::string&>());
  }
  return text;
}

// Appends what one message is in OpenAI's form: results of tools are messages of their own.
absl::Status ConvertTurn(const std::string& path, const Json& message, Json* out) {
  const JsonFields fields(message, absl::StrCat(path, "."));
  const Json* const role = fields.Find("role");
  if (role == nullptr || (*role != "user" && *role != "assistant"))
    return fields.Wrong("role", "\"user\" or \"assistant\"", role == nullptr ? Json() : *role);
  const Json* const content = fields.Find("content");
  if (content == nullptr) return rpc::BadField(fields.Name("content"), "is missing", "1", "0");
  if (content->is_string()) {
    out->push_back({{"role", *role}, {"content", *content}});
    return absl::OkStatus();
  }
  if (!content->is_array()) return fields.Wrong("content", "a string or an array of blocks", *content);
  Json turn = {{"role", *role}, {"content", nullptr}};
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& block = (*content)[i];
    const std::string name = absl::StrCat(path, ".content[", i, "]");
    if (!block.is_object()) return BadAnthropicBlock(name, block);
    const JsonFields inner(block, absl::StrCat(name, "."));
    const Json type = block.value("type", Json());
    std::string id, call;
    if (type == "text") {
      RETURN_IF_ERROR(inner.String(
          "text", [&](const std::string& value) { absl::StrAppend(&text, text.empty() ? "" : "\n", value); }));
    } else if (type == "thinking") {
      RETURN_IF_ERROR(inner.String("thinking", [&](const std::string& value) { turn["reasoning_content"] = value; }));
    } else if (type == "tool_use") {
      RETURN_IF_ERROR(inner.String("id", [&](const std::string& value) { id = value; }));
      RETURN_IF_ERROR(inner.String("name", [&](const std::string& value) { call = value; }));
      const Json* input = nullptr;
      RETURN_IF_ERROR(inner.Object("input", &input));
      turn["tool_calls"].push_back(
          {{"id", id},
           {"type", "function"},
           {"function", {{"name", call}, {"arguments", input == nullptr ? Json::object() : *input}}}});
    } else if (type == "tool_result") {
      RETURN_IF_ERROR(inner.String("tool_use_id", [&](const std::string& value) { id = value; }));
      ASSIGN_OR_RETURN(const std::string result, TextOfBlocks(inner.Name("content"), block.value("content", Json())));
      out->push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", result}});
    } else if (type != "redacted_thinking") {
      return BadAnthropicBlock(name, block);
    }
  }
  if (!text.empty()) turn["content"] = text;
  if (!text.empty() || turn.contains("tool_calls") || turn.contains("reasoning_content"))
    out->push_back(std::move(turn));
  return absl::OkStatus();
}

absl::Status ConvertAnthropicTools(const JsonFields& fields, Json* out) {
  const Json *tools = nullptr, *choice = nullptr;
  RETURN_IF_ERROR(fields.Array("tools", &tools));
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const std::string name = absl::StrCat("tools[", i, "]");
    const Json& tool = (*tools)[i];
    if (!tool.is_object() || !tool.value("name", Json()).is_string())
      return fields.Wrong(name, "an object with name and input_schema", tool);
    // Anthropic's own tools, whose schemas a model knows or which its servers run.
    if (const Json type = tool.value("type", Json()); !type.is_null() && type != "custom")
      return JsonFields(tool, absl::StrCat(name, "."))
          .Wrong("type", "\"custom\", the only kind that is served here", type);
    Json function = {{"name", tool["name"]}};
    for (const char* const key : {"description", "strict"}) {
      if (tool.contains(key)) function[key] = tool[key];
    }
    function["parameters"] = tool.value("input_schema", Json::object());
    (*out)["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  RETURN_IF_ERROR(fields.Object("tool_choice", &choice));
  if (choice == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(JsonFields(*choice, "tool_choice.").Bool("disable_parallel_tool_use", [out](bool value) {
    (*out)["parallel_tool_calls"] = !value;
  }));
  const Json type = choice->value("type", Json());
  if (type == "auto" || type == "none") {
    (*out)["tool_choice"] = type;
  } else if (type == "any") {
    (*out)["tool_choice"] = "required";
  } else if (type == "tool") {
    (*out)["tool_choice"] = {{"type", "function"}, {"function", {{"name", choice->value("name", Json())}}}};
  } else {
    return fields.Wrong("tool_choice.type", "auto, any, tool or none", type);
  }
  return absl::OkStatus();
}

// The form of the answer, under its name of now or the one before.  Sets *path to the name.
absl::Status ConvertAnthropicFormat(const JsonFields& fields, std::string* path, Json* out) {
  const Json *config = nullptr, *format = nullptr, *older = nullptr;
  RETURN_IF_ERROR(fields.Object("output_config", &config));
  if (config != nullptr) RETURN_IF_ERROR(JsonFields(*config, "output_config.").Object("format", &format));
  RETURN_IF_ERROR(fields.Object("output_format", &older));
  if (format != nullptr && older != nullptr)
    return rpc::BadField("output_format", "only one of output_config.format and this may be set", "1", "2");
  *path = older != nullptr ? "output_format" : "output_config.format";
  if (older != nullptr) format = older;
  return format == nullptr ? absl::OkStatus() : ConvertFormat(*format, *path, out);
}

// `format_path`: as ConvertAnthropicFormat sets it.
absl::StatusOr<Json> ConvertAnthropicBody(const std::string& body, std::string* format_path) {
  Json json;
  RETURN_IF_ERROR(ParseBody(body, &json));
  const JsonFields fields(json);
  RETURN_IF_ERROR(RefuseSet(fields, "mcp_servers", "is not supported"));
  Json out = Json::object();
  for (const char* const key : {"model", "temperature", "top_p", "top_k", "stream"}) {
    if (const Json* const value = fields.Find(key); value != nullptr) out[key] = *value;
  }
  if (const Json* const value = fields.Find("max_tokens"); value != nullptr) out["max_tokens"] = *value;
  if (const Json* const value = fields.Find("stop_sequences"); value != nullptr) out["stop"] = *value;
  ASSIGN_OR_RETURN(const std::string system, TextOfBlocks("system", json.value("system", Json())));
  out["messages"] = Json::array();
  if (!system.empty()) out["messages"].push_back({{"role", "system"}, {"content", system}});
  const Json *messages = nullptr, *thinking = nullptr;
  RETURN_IF_ERROR(fields.Array("messages", &messages));
  if (messages == nullptr || messages->empty()) return rpc::BadField("messages", "is missing or empty", "1", "0");
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string path = absl::StrCat("messages[", i, "]");
    if (!(*messages)[i].is_object()) return fields.Wrong(path, "an object", (*messages)[i]);
    RETURN_IF_ERROR(ConvertTurn(path, (*messages)[i], &out["messages"]));
  }
  // The model goes on with what the last message begins.
  const Json last = out["messages"].empty() ? Json::object() : out["messages"].back();
  if (last.value("role", Json()) == "assistant" && last["content"].is_string() && !last.contains("tool_calls"))
    out["continue_final_message"] = true;
  RETURN_IF_ERROR(fields.Object("thinking", &thinking));
  if (thinking != nullptr) {
    bool enabled = true;
    RETURN_IF_ERROR(JsonFields(*thinking, "thinking.").String("type", [&enabled](const std::string& type) {
      enabled = type != "disabled";
    }));
    out["chat_template_kwargs"] = {{"enable_thinking", enabled}};
  }
  RETURN_IF_ERROR(ConvertAnthropicFormat(fields, format_path, &out));
  RETURN_IF_ERROR(ConvertAnthropicTools(fields, &out));
  return out;
}

// --- the answer ---

std::string NamedEvent(const Json& data) {
  return absl::StrCat("event: ", data["type"].get_ref<const std::string&>(), "\n", Event(data));
}

class AnthropicWriter final : public ChatResponseWriter {
 public:
  explicit AnthropicWriter(const text::TextProcessor* text) : ChatResponseWriter(text) {}

  // Reads all but lengths, which /v1/messages/count_tokens has not; returns the body in OpenAI's form.
  absl::StatusOr<Json> Read(const std::string& body, v1::GenerateRequest* message);
  absl::StatusOr<std::vector<v1::GenerateRequest>> Parse(const std::string& body) override;
  void SetPromptTokens(size_t, int64_t tokens) override { prompt_tokens_ = tokens; }
  bool streams() const override { return streams_; }
  std::string Add(size_t prompt, const v1::GenerateResponse& message) override;
  std::string Finish() override;
  std::string Fail(const absl::Status& status) override {
    return absl::StrCat("event: error\ndata: ", ErrorBody(ErrorShape::kAnthropic, status), "\n\n");
  }
  ErrorShape error_shape() const override { return ErrorShape::kAnthropic; }

 private:
  Json Head() const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_},
            {"content", Json::array()},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr},
            {"usage", Usage()}};
  }
  // Anthropic's input tokens are those that no cache had.  Which these are shows at the end: until then, all.
  Json Usage() const {
    return {{"input_tokens", prompt_tokens_ - cached_tokens_},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", cached_tokens_},
            {"output_tokens", output_tokens_},
            {"output_tokens_details", {{"thinking_tokens", output_ == nullptr ? 0 : output_->reasoning_tokens()}}}};
  }
  void SetEnd(const v1::Finish& finish);
  static Json Block(const OutputPart& part, bool is_whole);

  bool streams_ = false, begun_ = false;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, output_tokens_ = 0;
  std::unique_ptr<AssistantOutput> output_;
  std::string id_, model_;
  Json stop_reason_ = nullptr, stop_sequence_ = nullptr;
};

absl::StatusOr<Json> AnthropicWriter::Read(const std::string& body, v1::GenerateRequest* message) {
  std::string format_path;
  ASSIGN_OR_RETURN(Json json, ConvertAnthropicBody(body, &format_path));
  RETURN_IF_ERROR(ReadChat(JsonFields(json), message));
  if (absl::StartsWith(constraint_field_, "response_format")) constraint_field_ = format_path;
  return json;
}

absl::StatusOr<std::vector<v1::GenerateRequest>> AnthropicWriter::Parse(const std::string& body) {
  std::vector<v1::GenerateRequest> requests(1);
  v1::GenerateRequest* const message = &requests.front();
  ASSIGN_OR_RETURN(const Json json, Read(body, message));
  const JsonFields fields(json);
  RETURN_IF_ERROR(fields.Bool("stream", [this](bool value) { streams_ = value; }));
  if (fields.Find("max_tokens") == nullptr) return rpc::BadField("max_tokens", "is missing", "1", "0");
  RETURN_IF_ERROR(
      fields.Integer("max_tokens", [&](int64_t value) { message->set_max_tokens(static_cast<int32_t>(value)); }));
  return requests;
}

Json AnthropicWriter::Block(const OutputPart& part, bool is_whole) {
  const std::string text = is_whole ? part.text : "";
  switch (part.kind) {
    case OutputPart::Kind::kText:
      return {{"type", "text"}, {"text", text}};
    case OutputPart::Kind::kReasoning:
      return {{"type", "thinking"}, {"thinking", text}, {"signature", ""}};
    default: {
      Json input = Json::object();
      if (is_whole && ReadJson(part.text, LenientJson(64), &input).has_value()) input = Json::object();
      return {{"type", "tool_use"}, {"id", part.id}, {"name", part.name}, {"input", std::move(input)}};
    }
  }
}

void AnthropicWriter::SetEnd(const v1::Finish& finish) {
  cached_tokens_ = finish.usage().cached_tokens();
  output_tokens_ = finish.usage().completion_tokens();
  const bool stops = finish.reason() == v1::FINISH_REASON_STOP;
  stop_reason_ = stops ? (output_->has_calls() ? "tool_use" : "end_turn") : "max_tokens";
  if (!finish.has_stop_string()) return;
  stop_reason_ = "stop_sequence";
  stop_sequence_ = finish.stop_string();
}

std::string AnthropicWriter::Add(size_t, const v1::GenerateResponse& message) {
  std::string events;
  if (!std::exchange(begun_, true)) {
    id_ = ResponseId("msg_", message.request_id());
    model_ = message.model();
    output_ = std::make_unique<AssistantOutput>(NewOutput(!streams_, absl::StrCat("toolu_", id_.substr(4), "_")));
    if (streams_) events += NamedEvent({{"type", "message_start"}, {"message", Head()}});
  }
  AssistantOutput::Events on;
  if (streams_) {
    on.on_begin = [&](size_t index, const OutputPart& part) {
      events += NamedEvent({{"type", "content_block_start"}, {"index", index}, {"content_block", Block(part, false)}});
    };
    on.on_text = [&](size_t index, const OutputPart& part, absl::string_view piece) {
      const std::string text(piece);
      Json delta = {{"type", "text_delta"}, {"text", text}};
      if (part.kind == OutputPart::Kind::kReasoning) delta = {{"type", "thinking_delta"}, {"thinking", text}};
      if (part.kind == OutputPart::Kind::kCall) delta = {{"type", "input_json_delta"}, {"partial_json", text}};
      events += NamedEvent({{"type", "content_block_delta"}, {"index", index}, {"delta", std::move(delta)}});
    };
    on.on_end = [&](size_t index, const OutputPart&) {
      events += NamedEvent({{"type", "content_block_stop"}, {"index", index}});
    };
  }
  output_->Add(message, on);
  if (message.has_finish()) SetEnd(message.finish());
  return events;
}

std::string AnthropicWriter::Finish() {
  if (streams_) {
    return absl::StrCat(NamedEvent({{"type", "message_delta"},
                                    {"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
                                    {"usage", Usage()}}),
                        NamedEvent({{"type", "message_stop"}}));
  }
  Json body = Head();
  if (output_ != nullptr) {
    for (const OutputPart& part : output_->parts()) body["content"].push_back(Block(part, true));
  }
  body["stop_reason"] = stop_reason_;
  body["stop_sequence"] = stop_sequence_;
  return JsonText(body);
}

}  // namespace

std::unique_ptr<ResponseWriter> NewAnthropicWriter(const text::TextProcessor* text) {
  return std::make_unique<AnthropicWriter>(text);
}

absl::StatusOr<std::unique_ptr<OutputFrame>> ReadMessagesToCount(const text::TextProcessor* text,
                                                                 const std::string& body,
                                                                 v1::TokenizeRequest* request) {
  auto writer = std::make_unique<AnthropicWriter>(text);
  v1::GenerateRequest message;
  RETURN_IF_ERROR(writer->Read(body, &message).status());
  request->set_model(message.model());
  request->mutable_messages()->Swap(message.mutable_messages());
  return std::unique_ptr<OutputFrame>(std::move(writer));
}

}  // namespace switchyard::server
