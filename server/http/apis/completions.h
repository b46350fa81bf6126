// POST /v1/completions: OpenAI's older API, of prompts that are text or token ids.
#pragma once

#include <ctime>
#include <memory>

#include "server/http/generate_exchange.h"

namespace switchyard::server {

// `created`: seconds since 1970, for the answer.
std::unique_ptr<ResponseWriter> NewCompletionsWriter(const text::TextProcessor* text, int64_t created);

}  // namespace switchyard::server
