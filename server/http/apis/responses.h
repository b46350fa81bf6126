// POST /v1/responses: OpenAI's newer API, with text, reasoning and function calls.  Nothing is stored.
#pragma once

#include <cstdint>
#include <memory>

#include "server/http/generate_exchange.h"

namespace switchyard::server {

// `created`: seconds since 1970, for the answer.
std::unique_ptr<ResponseWriter> NewResponsesWriter(const text::TextProcessor* text, int64_t created);

}  // namespace switchyard::server
