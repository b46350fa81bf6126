// POST /v1/chat/completions: OpenAI's API of conversations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/http/generate_exchange.h"
#include "server/http/json_fields.h"

namespace switchyard::server {

// `created`: seconds since 1970, for the answer.
std::unique_ptr<ResponseWriter> NewChatWriter(const text::TextProcessor* text, int64_t created);

// The request's tools, in OpenAI's form, and whether one must be called.
struct ToolChoice {
  const JsonFields::Json* tools = nullptr;  // null: there are none that may be called
  bool is_required = false;
  bool may_be_many = true;  // calls in one answer
  std::string name;         // of the one to call; empty: any
};
absl::Status ReadTools(const JsonFields& fields, ToolChoice* choice);

// Reads messages, tools and what else a chat template sees.  `key`: of the messages.
absl::Status ReadMessages(const JsonFields& fields, const char* key, v1::Messages* messages);

}  // namespace switchyard::server
