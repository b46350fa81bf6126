// Errors as HTTP APIs have them: OpenAI's and Anthropic's shapes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/http/http_exchange.h"

namespace switchyard::server {

enum class ErrorShape { kOpenAi, kAnthropic };

int HttpStatusOf(const absl::Status& status);
// The body alone, for a stream that has begun.
std::string ErrorBody(ErrorShape shape, const absl::Status& status);
// The whole answer, with Retry-After where the error says when another try makes sense.
HttpReply ErrorReply(ErrorShape shape, const absl::Status& status);
// Likewise for what breaks a rule of HTTP.
HttpReply ErrorReply(ErrorShape shape, int http_status, absl::string_view message);

}  // namespace switchyard::server
