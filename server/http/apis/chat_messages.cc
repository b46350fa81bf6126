// Conversations of OpenAI's requests, as chat templates read them.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"
#include "server/api/convert_messages.h"
#include "server/http/apis/chat.h"

namespace switchyard::server {
namespace {

using Json = JsonFields::Json;

constexpr int kArgumentsDepth = 32;

// Text is the only kind of content that models here read.
absl::Status CheckContent(const JsonFields& message, const Json& content) {
  if (content.is_string()) return absl::OkStatus();
  if (!content.is_array()) return message.Wrong("content", "a string or an array of parts", content);
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string name = absl::StrCat("content[", i, "]");
    if (!content[i].is_object()) return message.Wrong(name, "an object with type and text", content[i]);
    const auto type = content[i].find("type");
    if (type == content[i].end() || *type != "text") {
      const std::string actual = type == content[i].end() ? "none" : JsonText(*type);
      return rpc::BadField(message.Name(absl::StrCat(name, ".type")),
                           absl::StrCat("must be \"text\", the only kind that is served here, is ", actual), "text",
                           actual);
    }
    const auto text = content[i].find("text");
    if (text == content[i].end() || !text->is_string())
      return message.Wrong(absl::StrCat(name, ".text"), "a string", text == content[i].end() ? Json() : *text);
  }
  return absl::OkStatus();
}

// Clients send a call's arguments as JSON text; templates want the object.
absl::Status ReadToolCalls(const JsonFields& message, Json* calls) {
  if (!calls->is_array()) return message.Wrong("tool_calls", "an array", *calls);
  for (size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (!call.is_object() || function == call.end() || !function->is_object())
      return message.Wrong(absl::StrCat("tool_calls[", i, "].function"), "an object", call);
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    Json parsed;
    const std::optional<JsonFault> fault =
        ReadJson(arguments->get_ref<const std::string&>(), LenientJson(kArgumentsDepth, kMaxJsonKeys), &parsed);
    if (fault && fault->kind == JsonFault::Kind::kKeys) {
      return rpc::BadField(message.Name(absl::StrCat("tool_calls[", i, "].function.arguments")), fault->reason,
                           absl::StrCat(kMaxJsonKeys), absl::StrCat(fault->keys));
    }
    if (!fault && parsed.is_object()) *arguments = std::move(parsed);
  }
  return absl::OkStatus();
}

absl::Status ReadMessage(const std::string& path, Json message, v1::Messages* to) {
  if (!message.is_object())
    return rpc::BadField(path, "must be an object", "an object", JsonText(message).substr(0, 60));
  const JsonFields fields(message, absl::StrCat(path, "."));
  bool has_role = false;
  RETURN_IF_ERROR(fields.String("role", [&](const std::string& role) { has_role = !role.empty(); }));
  if (!has_role) return rpc::BadField(fields.Name("role"), "is missing", "a role", "");
  // Calls may come without content; templates read it all the same, so it is empty then (as vLLM has it).
  if (const Json* const content = fields.Find("content"); content != nullptr) {
    RETURN_IF_ERROR(CheckContent(fields, *content));
  } else {
    message["content"] = "";
  }
  if (const auto calls = message.find("tool_calls"); calls != message.end() && !calls->is_null())
    RETURN_IF_ERROR(ReadToolCalls(fields, &*calls));
  to->add_messages()->set_extra_json(JsonText(message));
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTools(const JsonFields& fields, ToolChoice* to) {
  RETURN_IF_ERROR(fields.Array("tools", &to->tools));
  const size_t count = to->tools == nullptr ? 0 : to->tools->size();
  const auto function_of = [](const Json& tool) {
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    return function == tool.end() || !function->is_object() ? Json() : *function;
  };
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    const Json& tool = (*to->tools)[i];
    if (const Json type = tool.is_object() ? tool.value("type", Json()) : Json(); !type.is_null() && type != "function")
      return fields.Wrong(absl::StrCat("tools[", i, "].type"), "\"function\", the only kind that is served here", type);
    const Json function = function_of(tool);
    const auto name = function.find("name");
    if (function.is_null() || name == function.end() || !name->is_string())
      return fields.Wrong(absl::StrCat("tools[", i, "].function"), "an object with a name", tool);
    names.push_back(*name);
  }
  RETURN_IF_ERROR(fields.Bool("parallel_tool_calls", [to](bool value) { to->may_be_many = value; }));
  const Json* const choice = fields.Find("tool_choice");
  if (choice == nullptr || *choice == "auto") return absl::OkStatus();
  if (*choice == "none") {
    to->tools = nullptr;
    return absl::OkStatus();
  }
  to->is_required = true;
  if (const Json function = function_of(*choice); !function.is_null() && function.value("name", Json()).is_string()) {
    to->name = function["name"];
    if (std::find(names.begin(), names.end(), to->name) == names.end())
      return rpc::BadField(fields.Name("tool_choice"), absl::StrCat("tools has no function ", Quote(to->name)), "", "");
  } else if (*choice != "required") {
    return fields.Wrong("tool_choice",
                        "\"auto\", \"none\", \"required\" or {\"type\":\"function\",\"function\":{\"name\":...}}",
                        *choice);
  }
  if (count == 0) return rpc::BadField(fields.Name("tool_choice"), "wants a call, but tools is empty", "1", "0");
  return absl::OkStatus();
}

absl::Status ReadMessages(const JsonFields& fields, const char* key, v1::Messages* messages) {
  const Json *list = nullptr, *kwargs = nullptr;
  RETURN_IF_ERROR(fields.Array(key, &list));
  if (list == nullptr) return rpc::BadField(fields.Name(key), "is missing", "1", "0");
  for (size_t i = 0; i < list->size(); ++i)
    RETURN_IF_ERROR(ReadMessage(absl::StrCat(key, "[", i, "]"), (*list)[i], messages));
  ToolChoice choice;
  RETURN_IF_ERROR(ReadTools(fields, &choice));
  for (size_t i = 0; choice.tools != nullptr && i < choice.tools->size(); ++i)
    messages->add_tools(JsonText((*choice.tools)[i]));
  RETURN_IF_ERROR(
      fields.Bool("add_generation_prompt", [&](bool value) { messages->set_add_generation_prompt(value); }));
  RETURN_IF_ERROR(fields.Object("chat_template_kwargs", &kwargs));
  Json variables = kwargs == nullptr ? Json::object() : *kwargs;
  RETURN_IF_ERROR(fields.String("reasoning_effort", [&](const std::string& effort) {
    if (!variables.contains("reasoning_effort")) variables["reasoning_effort"] = effort;
  }));
  if (!variables.empty()) messages->set_template_args_json(JsonText(variables));
  return absl::OkStatus();
}

}  // namespace switchyard::server
