// OpenAI's content parts ([{"type": "text", "text": "Hi"}]) for chat templates that know a message's content as text
// only.  Pure functions; thread-safe.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "server/text/chat_template/chat_template.h"

namespace switchyard::text {

// Whether `chat` prints content that is a text, but not content that is a list of parts: it fails on them, drops them,
// or prints the list itself.  Found by rendering one message both ways with `variables`, which has what the template
// sees besides messages.  False where that tells nothing, as the template renders neither.
bool KnowsTextOnly(const ChatTemplate& chat, const nlohmann::ordered_json& variables);

// Joins the text parts of each message's content with line feeds, as vLLM does; a part may also be a bare text.
// InvalidArgument names the first part that is no text (an image, say).
absl::Status JoinContentParts(nlohmann::ordered_json* messages);

}  // namespace switchyard::text
