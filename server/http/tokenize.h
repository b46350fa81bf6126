// POST /tokenize and /detokenize, as vLLM has them, and Anthropic's count of tokens.
#pragma once

#include <memory>

#include "server/api/request_context.h"
#include "server/http/http_exchange.h"

namespace switchyard::server {

// Answer the exchange, later.
void AnswerTokenize(RequestContext* context, const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
void AnswerCountTokens(RequestContext* context, const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);
void AnswerDetokenize(RequestContext* context, const std::shared_ptr<HttpExchange>& exchange, const Caller& caller);

}  // namespace switchyard::server
