#include "proto/support/errors.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/message_lite.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::rpc {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr size_t kMaxMessageBytes = 2048;

std::string CutLong(absl::string_view text) {
  if (text.size() <= kMaxMessageBytes) return std::string(text);
  return absl::StrCat(CutText(text, kMaxMessageBytes), "...");
}

// By a view, as Cord's constructor of a string that is given away has another name in a library that GCC built than
// clang expects of it.
absl::Cord PayloadOf(const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  return absl::Cord(absl::string_view(bytes));
}

void AddDetail(const char* url, std::string value, google::rpc::Status* message) {
  google::protobuf::Any* any = message->add_details();
  any->set_type_url(url);
  any->set_value(std::move(value));
}

v1::ErrorReason DefaultReason(absl::StatusCode code) {
  if (code == absl::StatusCode::kDeadlineExceeded) return v1::DEADLINE;
  return code == absl::StatusCode::kInvalidArgument ? v1::BAD_FIELD : v1::ENGINE_ERROR;
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, v1::ErrorReason reason, absl::string_view message,
                       ErrorMetadata metadata) {
  google::rpc::ErrorInfo info;
  info.set_reason(v1::ErrorReason_Name(reason));
  info.set_domain("switchyard");
  for (const auto& [key, value] : metadata) (*info.mutable_metadata())[key] = CutLong(value);
  absl::Status status(code, message);
  status.SetPayload(kErrorInfoUrl, PayloadOf(info));
  return status;
}

absl::Status WithRetry(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(delay));
  retry.mutable_retry_delay()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(delay - absl::Floor(delay, absl::Seconds(1)))));
  status.SetPayload(kRetryInfoUrl, PayloadOf(retry));
  return status;
}

absl::Status BadField(absl::string_view field, absl::string_view problem, absl::string_view limit,
                      absl::string_view actual) {
  return MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_FIELD, absl::StrCat(field, ": ", problem),
                   {{"field", std::string(field)}, {"limit", std::string(limit)}, {"actual", std::string(actual)}});
}

v1::ErrorReason ReasonOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  if (const auto payload = status.GetPayload(kErrorInfoUrl)) info.ParseFromString(std::string(*payload));
  v1::ErrorReason_Parse(info.reason(), &reason);
  return reason;
}

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status message;
  message.set_code(static_cast<int>(status.code()));
  message.set_message(std::string(status.message()));
  for (const char* url : {kErrorInfoUrl, kRetryInfoUrl}) {
    if (const auto payload = status.GetPayload(url)) AddDetail(url, std::string(*payload), &message);
  }
  return message;
}

absl::Status FromRpcStatus(const google::rpc::Status& message) {
  absl::Status status(static_cast<absl::StatusCode>(message.code()), message.message());
  for (const google::protobuf::Any& any : message.details()) {
    if (any.type_url() == kErrorInfoUrl || any.type_url() == kRetryInfoUrl) {
      status.SetPayload(any.type_url(), absl::Cord(any.value()));
    }
  }
  return status;
}

grpc::Status ToGrpcStatus(const absl::Status& status, absl::string_view request_id) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::ErrorInfo info;
  if (const auto payload = status.GetPayload(kErrorInfoUrl)) {
    info.ParseFromString(std::string(*payload));
  } else {
    info.set_reason(v1::ErrorReason_Name(DefaultReason(status.code())));
    info.set_domain("switchyard");
  }
  const auto retry = status.GetPayload(kRetryInfoUrl);
  const bool retryable = retry.has_value() || absl::IsUnavailable(status);
  (*info.mutable_metadata())["retryable"] = retryable ? "true" : "false";
  if (!request_id.empty()) (*info.mutable_metadata())["requestId"] = std::string(request_id);
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(CutLong(status.message()));
  AddDetail(kErrorInfoUrl, info.SerializeAsString(), &details);
  if (retry.has_value()) AddDetail(kRetryInfoUrl, std::string(*retry), &details);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(), details.SerializeAsString());
}

ErrorView ViewError(const grpc::Status& status) {
  ErrorView view;
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return view;
  for (const google::protobuf::Any& any : details.details()) {
    if (any.type_url() == kErrorInfoUrl && view.details.ParseFromString(any.value()))
      view.reason = view.details.reason();
    google::rpc::RetryInfo retry;
    if (any.type_url() == kRetryInfoUrl && retry.ParseFromString(any.value())) {
      view.retry_after = absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  return view;
}

}  // namespace switchyard::rpc
