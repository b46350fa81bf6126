// The web page at /: a chat with the model, and a live view of experts, load and jobs.
//
// Its files hold nothing of the server, so they need no key; what the page shows, it asks for with its reader's key
// (live_api.h, and OpenAI's API).  Their headers keep the page to itself: no source of scripts, styles or data but this
// server, no frame around it, and no text that becomes HTML.
#pragma once

#include <memory>

#include "server/http/http_exchange.h"

namespace switchyard::server {

// Answers with the file of the request's path; 404 without one.  On the exchange's strand.
void AnswerPageFile(const std::shared_ptr<HttpExchange>& exchange);

}  // namespace switchyard::server
