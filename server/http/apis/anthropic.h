// POST /v1/messages: Anthropic's API of conversations, with text, thinking and tools.
#pragma once

#include <memory>

#include "server/http/generate_exchange.h"

namespace switchyard::server {

std::unique_ptr<ResponseWriter> NewAnthropicWriter(const text::TextProcessor* text);

// The body of /v1/messages/count_tokens as that of /tokenize.
absl::StatusOr<std::string> TokenizeBodyOfMessages(const std::string& body);

}  // namespace switchyard::server
