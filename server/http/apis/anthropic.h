// POST /v1/messages: Anthropic's API of conversations, with text, thinking and tools.
#pragma once

#include <memory>
#include <string>

#include "server/http/generate_exchange.h"

namespace switchyard::server {

std::unique_ptr<ResponseWriter> NewAnthropicWriter(const text::TextProcessor* text);

// Reads the body of /v1/messages/count_tokens; returns what begins the answer of such a message, which is part of what
// the model gets.
absl::StatusOr<std::unique_ptr<OutputFrame>> ReadMessagesToCount(const text::TextProcessor* text,
                                                                 const std::string& body, v1::TokenizeRequest* request);

}  // namespace switchyard::server
