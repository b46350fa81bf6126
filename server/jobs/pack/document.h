// One line of a JSONL file of training text: an object with exactly one of
//   "text"                     a text
//   "prompt" and "completion"  two texts
//   "messages"                 a conversation: [{"role", "content", …}], one of them by the assistant; "tools", if the
//                              line has them, go to the chat template
//   "chosen" and "rejected"    a pair of answers: two texts, with a text "prompt"; or two lists of messages, with a
//   list
//                              "prompt" before them, or else what both begin with is the prompt (also where "prompt" is
//                              a text, as in data sets that have it in both forms)
// Other keys are ignored.  Pure.  Errors are InvalidArgument, "<key>: expected X, found Y", and quote at most 64 bytes
// of the line, escaped.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::server {

enum class DocumentKind : uint8_t { kText, kCompletion, kMessages, kPair };

struct Document {
  DocumentKind kind = DocumentKind::kText;
  std::string text = {};        // the text, or the prompt
  std::string completion = {};  // of kCompletion
  nlohmann::ordered_json messages = nullptr, tools = nullptr;
  size_t prompt_messages = 0;       // so many messages from the first one on are not trained, whoever's they are
  std::vector<Document> pair = {};  // of kPair: the chosen and the rejected one, each a completion or messages
};

inline constexpr int kMaxDocumentDepth = 64;     // brackets within each other
inline constexpr int kMaxDocumentKeys = 16'384;  // of all objects of a line
inline constexpr size_t kMaxDocumentMessages = 1024;

absl::StatusOr<Document> ParseDocument(absl::string_view line);
// InvalidArgument if it is a pair and none is wanted, or the other way round.
absl::Status CheckKind(const Document& document, bool pairs);

}  // namespace switchyard::server
