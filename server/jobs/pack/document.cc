#include "server/jobs/pack/document.h"

#include <algorithm>
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

absl::Status CheckMessages(absl::string_view key, const Json& messages) {
  if (!messages.is_array() || messages.empty()) return Wrong(key, "a list of at least one message", messages);
  if (messages.size() > kMaxDocumentMessages) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": ", messages.size(), " of them, limit ", kMaxDocumentMessages));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string at = absl::StrCat(key, "[", i, "]");
    if (!messages[i].is_object()) return Wrong(at, "an object", messages[i]);
    const auto role = messages[i].find("role"), content = messages[i].find("content");
    if (role == messages[i].end()) return absl::InvalidArgumentError(absl::StrCat(at, ".role: is missing"));
    if (!role->is_string()) return Wrong(at + ".role", "a text", *role);
    // A message that only calls tools has no content; content may be a list of parts, for templates that support it.
    const bool wrong =
        content != messages[i].end() && !content->is_string() && !content->is_null() && !content->is_array();
    if (wrong) return Wrong(at + ".content", "a text", *content);
  }
  return absl::OkStatus();
}

bool IsAssistants(const Json& message) { return message["role"] == "assistant"; }

absl::Status TakeTools(Json* object, Document* document) {
  if (object->contains("tools")) document->tools = std::move((*object)["tools"]);
  if (document->tools.is_null() || document->tools.is_array()) return absl::OkStatus();
  return Wrong("tools", "a list", document->tools);
}

absl::Status Equal() {
  return absl::InvalidArgumentError("chosen, rejected: are equal, so nothing says which one is better");
}

absl::Status PairOfTexts(Json* object, Document* document) {
  Document chosen = {.kind = DocumentKind::kCompletion};
  if (!object->contains("prompt")) {
    return absl::InvalidArgumentError("prompt: is missing, which goes with texts as chosen and rejected");
  }
  RETURN_IF_ERROR(TakeText(object, "prompt", &chosen.text));
  Document rejected = chosen;
  RETURN_IF_ERROR(TakeText(object, "chosen", &chosen.completion));
  RETURN_IF_ERROR(TakeText(object, "rejected", &rejected.completion));
  if (chosen.completion.empty()) return absl::InvalidArgumentError("chosen: is empty");
  if (rejected.completion.empty()) return absl::InvalidArgumentError("rejected: is empty");
  if (chosen.completion == rejected.completion) return Equal();
  document->pair = {std::move(chosen), std::move(rejected)};
  return absl::OkStatus();
}

// Checks that a conversation has an answer behind its prompt.
absl::Status CheckAnswer(absl::string_view key, const Document& document) {
  const Json& all = document.messages;
  if (all.size() > kMaxDocumentMessages) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": ", all.size(), " messages with those of the prompt, limit ", kMaxDocumentMessages));
  }
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(document.prompt_messages);
  if (std::none_of(begin, all.end(), IsAssistants)) {
    return absl::InvalidArgumentError(absl::StrCat(key, ": none of its ", all.size() - document.prompt_messages,
                                                   " messages behind the prompt is the assistant's"));
  }
  const auto says = [](const Json& message) {
    const auto content = message.find("content");
    const bool empty = content == message.end() || content->is_null() || content->empty() || *content == "";
    return IsAssistants(message) && (!empty || message.contains("tool_calls"));
  };
  if (std::any_of(begin, all.end(), says)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key, ": its answer is empty"));
}

absl::Status PairOfConversations(Json* object, Document* document) {
  Document chosen = {.kind = DocumentKind::kMessages};
  RETURN_IF_ERROR(TakeTools(object, &chosen));
  Document rejected = chosen;
  for (const char* const key : {"chosen", "rejected"}) RETURN_IF_ERROR(CheckMessages(key, (*object)[key]));
  chosen.messages = std::move((*object)["chosen"]);
  rejected.messages = std::move((*object)["rejected"]);
  if (chosen.messages == rejected.messages) return Equal();
  if (object->contains("prompt") && !(*object)["prompt"].is_string()) {
    const Json& prompt = (*object)["prompt"];
    RETURN_IF_ERROR(CheckMessages("prompt", prompt));
    for (Document* const each : {&chosen, &rejected}) {
      each->messages.insert(each->messages.begin(), prompt.begin(), prompt.end());
      each->prompt_messages = prompt.size();
    }
  } else {
    const auto first = std::mismatch(chosen.messages.begin(), chosen.messages.end(), rejected.messages.begin(),
                                     rejected.messages.end());
    const auto common = static_cast<size_t>(first.first - chosen.messages.begin());
    if (common == 0) {
      return absl::InvalidArgumentError("chosen, rejected: their first messages differ, so they have no prompt");
    }
    chosen.prompt_messages = rejected.prompt_messages = common;
  }
  RETURN_IF_ERROR(CheckAnswer("chosen", chosen));
  RETURN_IF_ERROR(CheckAnswer("rejected", rejected));
  document->pair = {std::move(chosen), std::move(rejected)};
  return absl::OkStatus();
}

absl::StatusOr<Document> ParsePair(Json* object) {
  Document document = {.kind = DocumentKind::kPair};
  for (const char* const key : {"chosen", "rejected"}) {
    if (!object->contains(key)) {
      return absl::InvalidArgumentError(absl::StrCat(key, ": is missing; a pair has chosen and rejected"));
    }
  }
  const bool texts = (*object)["chosen"].is_string();
  RETURN_IF_ERROR(texts ? PairOfTexts(object, &document) : PairOfConversations(object, &document));
  return document;
}

}  // namespace

absl::StatusOr<Document> ParseDocument(absl::string_view line) {
  ASSIGN_OR_RETURN(Json object, ParseObject(line));
  const bool text = object.contains("text"), messages = object.contains("messages");
  const bool prompt = object.contains("prompt"), completion = object.contains("completion");
  const bool pair = object.contains("chosen") || object.contains("rejected");
  if (pair && !text && !messages && !completion) return ParsePair(&object);
  if (pair || text + messages + (prompt || completion) != 1 || prompt != completion) {
    std::string found;
    for (const auto& [key, value] : object.items()) absl::StrAppend(&found, found.empty() ? "" : ", ", key);
    return absl::InvalidArgumentError(absl::StrCat("exactly one of text, messages, prompt with completion",
                                                   pair ? ", chosen with rejected" : "", " is wanted; the keys are ",
                                                   Quote(found)));
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
    RETURN_IF_ERROR(CheckMessages("messages", object["messages"]));
    document.messages = std::move(object["messages"]);
    if (std::none_of(document.messages.begin(), document.messages.end(), IsAssistants)) {
      return absl::InvalidArgumentError("messages: none is the assistant's, so nothing of it would be trained");
    }
    RETURN_IF_ERROR(TakeTools(&object, &document));
  }
  return document;
}

absl::Status CheckKind(const Document& document, bool pairs) {
  const bool pair = document.kind == DocumentKind::kPair;
  if (pair == pairs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      pair ? "chosen, rejected: a pair of answers is for a job with dpo (train submit --dpo_beta), or for a file whose "
             "first line is a pair; either has pairs alone"
           : "has no chosen and rejected: a job with dpo, and a file that begins with a pair, has pairs alone");
}

}  // namespace switchyard::server
