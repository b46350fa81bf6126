// Conversations of OpenAI's requests, as chat templates read them.
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"
#include "server/http/chat.h"

namespace switchyard::server {
namespace {

using Json = JsonFields::Json;

constexpr int kMostDepth = 32;

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
    if (!ReadJson(arguments->get_ref<const std::string&>(), LenientJson(kMostDepth), &parsed) && parsed.is_object())
      *arguments = std::move(parsed);
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
  if (const Json* const content = fields.Find("content"); content != nullptr)
    RETURN_IF_ERROR(CheckContent(fields, *content));
  if (const auto calls = message.find("tool_calls"); calls != message.end() && !calls->is_null())
    RETURN_IF_ERROR(ReadToolCalls(fields, &*calls));
  to->add_messages()->set_extra_json(JsonText(message));
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadMessages(const JsonFields& fields, const char* key, v1::Messages* messages) {
  const Json *list = nullptr, *tools = nullptr, *kwargs = nullptr;
  RETURN_IF_ERROR(fields.Array(key, &list));
  if (list == nullptr) return rpc::BadField(fields.Name(key), "is missing", "1", "0");
  for (size_t i = 0; i < list->size(); ++i)
    RETURN_IF_ERROR(ReadMessage(absl::StrCat(key, "[", i, "]"), (*list)[i], messages));
  RETURN_IF_ERROR(fields.Array("tools", &tools));
  const Json* const choice = fields.Find("tool_choice");
  const bool wants_none = choice != nullptr && *choice == "none";
  for (size_t i = 0; tools != nullptr && !wants_none && i < tools->size(); ++i)
    messages->add_tools(JsonText((*tools)[i]));
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
