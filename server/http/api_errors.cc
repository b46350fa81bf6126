#include "server/http/api_errors.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "proto/support/errors.h"
#include "scheduler/base/text/json_value.h"

namespace switchyard::server {
namespace {

using nlohmann::ordered_json;

// Names of our messages' fields that HTTP's requests call otherwise, and what stands for them.  A name that ends in a
// dot is a prefix, others are whole, or a list's: "text" is not "text.format", a member of /v1/responses.
constexpr std::pair<absl::string_view, absl::string_view> kFieldNames[] = {
    {"sampling.", ""},
    {"constraint.", ""},
    {"messages.messages", "messages"},
    {"messages.tools", "tools"},
    {"messages.template_args_json", "chat_template_kwargs"},
    {"text", "prompt"},
    {"token_ids", "prompt"},
};

std::string HttpField(absl::string_view field) {
  for (const auto& [ours, theirs] : kFieldNames) {
    if (!absl::StartsWith(field, ours)) continue;
    const absl::string_view rest = field.substr(ours.size());
    if (absl::EndsWith(ours, ".") || rest.empty() || rest[0] == '[') return absl::StrCat(theirs, rest);
  }
  return std::string(field);
}

struct ErrorNames {
  int status;
  absl::string_view openai_type, anthropic_type;
};
constexpr ErrorNames kNames[] = {
    {400, "invalid_request_error", "invalid_request_error"}, {401, "invalid_request_error", "authentication_error"},
    {403, "invalid_request_error", "permission_error"},      {404, "invalid_request_error", "not_found_error"},
    {405, "invalid_request_error", "invalid_request_error"}, {408, "invalid_request_error", "invalid_request_error"},
    {409, "invalid_request_error", "invalid_request_error"}, {413, "invalid_request_error", "request_too_large"},
    {415, "invalid_request_error", "invalid_request_error"}, {429, "rate_limit_error", "rate_limit_error"},
    {431, "invalid_request_error", "invalid_request_error"}, {503, "server_error", "overloaded_error"},
};

const ErrorNames& NamesOf(int status) {
  static constexpr ErrorNames kOther = {500, "server_error", "api_error"};
  const auto* const at = std::find_if(std::begin(kNames), std::end(kNames),
                                      [status](const ErrorNames& row) { return row.status == status; });
  return at == std::end(kNames) ? kOther : *at;
}

std::string Body(ErrorShape shape, int status, const std::string& message, const ordered_json& param,
                 const ordered_json& code) {
  const ErrorNames& names = NamesOf(status);
  ordered_json body;
  if (shape == ErrorShape::kAnthropic) {
    body = {{"type", "error"}, {"error", {{"type", names.anthropic_type.data()}, {"message", message}}}};
  } else {
    body = {{"error", {{"message", message}, {"type", names.openai_type.data()}, {"param", param}, {"code", code}}}};
  }
  return JsonText(body);
}

}  // namespace

int HttpStatusOf(const absl::Status& status) {
  const v1::ErrorReason reason = rpc::ReasonOf(status);
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
      return 409;
    case absl::StatusCode::kFailedPrecondition:
      return reason == v1::MODEL_LOADING ? 503 : 400;
    case absl::StatusCode::kResourceExhausted:
      return reason == v1::TEXT_LIMIT ? 400 : 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kUnimplemented:
      return 501;
    default:
      return 500;
  }
}

std::string ErrorBody(ErrorShape shape, const absl::Status& status) {
  const rpc::ErrorView view = rpc::ViewError(rpc::ToGrpcStatus(status, ""));
  std::string message(status.message());
  ordered_json param = nullptr, code = nullptr;
  if (const auto field = view.details.metadata().find("field"); field != view.details.metadata().end()) {
    param = HttpField(field->second);
    if (absl::StartsWith(message, absl::StrCat(field->second, ":")))
      message = absl::StrCat(param.get<std::string>(), message.substr(field->second.size()));
  }
  // OpenAI's names, where it has some.
  switch (rpc::ReasonOf(status)) {
    case v1::ERROR_REASON_UNSPECIFIED:
      break;
    case v1::NO_KEY:
      code = "invalid_api_key";
      break;
    case v1::MODEL_NOT_FOUND:
      code = "model_not_found";
      break;
    case v1::PROMPT_TOO_LONG:
      code = "context_length_exceeded";
      break;
    case v1::QUOTA:
      code = "rate_limit_exceeded";
      break;
    default:
      code = absl::AsciiStrToLower(view.reason);
  }
  return Body(shape, HttpStatusOf(status), message, param, code);
}

HttpReply ErrorReply(ErrorShape shape, const absl::Status& status) {
  HttpReply reply = {.status = HttpStatusOf(status), .body = ErrorBody(shape, status)};
  const absl::Duration after = rpc::ViewError(rpc::ToGrpcStatus(status, "")).retry_after;
  if (after > absl::ZeroDuration())
    reply.headers.emplace_back("Retry-After", absl::StrCat(absl::ToInt64Seconds(absl::Ceil(after, absl::Seconds(1)))));
  if (reply.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

HttpReply ErrorReply(ErrorShape shape, int http_status, absl::string_view message) {
  HttpReply reply = {.status = http_status, .body = Body(shape, http_status, std::string(message), nullptr, nullptr)};
  if (http_status == 429) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

}  // namespace switchyard::server
