#include "server/jobs/pack/document.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/strict_json.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::server {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Wrong(absl::string_view key, absl::string_view expected, const Json& found) {
  const std::string shown = found.is_string() ? Quote(found.get_ref<const std::string&>()) : found.type_name();
  return absl::InvalidArgumentError(absl::StrCat(key, ": expected ", expected, ", found ", shown));
}

absl::StatusOr<Json> ParseObject(absl::string_view line) {
  if (const size_t bad = FindInvalidUtf8(line); bad != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("not valid UTF-8 at byte ", bad, " of the line: ", Quote(line.substr(bad))));
  }
  constexpr JsonLimits kLimits = {.max_depth = kMaxDocumentDepth,
                                  .max_values = kNoJsonLimit,
                                  .max_keys = kMaxDocumentKeys,
                                  .max_key_bytes = kNoJsonLimit};
  Json object;
  if (const std::optional<JsonFault> fault = ReadJson(line, kLimits, &object)) {
    if (fault->kind == JsonFault::Kind::kDuplicateKey) return absl::InvalidArgumentError("a key is there twice");
    if (fault->kind != JsonFault::Kind::kText) return absl::InvalidArgumentError(fault->reason);
    return absl::InvalidArgumentError(
        absl::StrCat("not JSON: ", fault->detail, "; the line begins with ", Quote(line)));
  }
  if (!object.is_object()) return Wrong("the line", "an object", object);
  return object;
}

absl::Status TakeText(Json* object, const char* key, std::string* text) {
  Json& value = (*object)[key];
  if (!value.is_string()) return Wrong(key, "a text", value);
  *text = std::move(value.get_ref<std::string&>());
  return absl::OkStatus();
}

absl::Status CheckMessages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) return Wrong("messages", "a list of at least one message", messages);
  if (messages.size() > kMaxDocumentMessages) {
    return absl::InvalidArgumentError(
        absl::StrCat("messages: ", messages.size(), " of them, limit ", kMaxDocumentMessages));
  }
  bool assistant = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string at = absl::StrCat("messages[", i, "]");
    if (!messages[i].is_object()) return Wrong(at, "an object", messages[i]);
    const auto role = messages[i].find("role"), content = messages[i].find("content");
    if (role == messages[i].end()) return absl::InvalidArgumentError(absl::StrCat(at, ".role: is missing"));
    if (!role->is_string()) return Wrong(at + ".role", "a text", *role);
    // A message that only calls tools has no content; content may be a list of parts, for templates that support it.
    const bool wrong =
        content != messages[i].end() && !content->is_string() && !content->is_null() && !content->is_array();
    if (wrong) return Wrong(at + ".content", "a text", *content);
    assistant = assistant || *role == "assistant";
  }
  if (assistant) return absl::OkStatus();
  return absl::InvalidArgumentError("messages: none is the assistant's, so nothing of it would be trained");
}

}  // namespace

absl::StatusOr<Document> ParseDocument(absl::string_view line) {
  ASSIGN_OR_RETURN(Json object, ParseObject(line));
  const bool text = object.contains("text"), messages = object.contains("messages");
  const bool prompt = object.contains("prompt"), completion = object.contains("completion");
  if (text + messages + (prompt || completion) != 1 || prompt != completion) {
    std::string found;
    for (const auto& [key, value] : object.items()) absl::StrAppend(&found, found.empty() ? "" : ", ", key);
    return absl::InvalidArgumentError(
        absl::StrCat("exactly one of text, messages, prompt with completion is wanted; the keys are ", Quote(found)));
  }
  Document document;
  if (text) {
    RETURN_IF_ERROR(TakeText(&object, "text", &document.text));
  } else if (prompt) {
    document.kind = DocumentKind::kCompletion;
    RETURN_IF_ERROR(TakeText(&object, "prompt", &document.text));
    RETURN_IF_ERROR(TakeText(&object, "completion", &document.completion));
  } else {
    document.kind = DocumentKind::kMessages;
    RETURN_IF_ERROR(CheckMessages(object["messages"]));
    document.messages = std::move(object["messages"]);
    if (object.contains("tools")) document.tools = std::move(object["tools"]);
    if (!document.tools.is_null() && !document.tools.is_array()) return Wrong("tools", "a list", document.tools);
  }
  return document;
}

}  // namespace switchyard::server
