// Errors for clients: an absl::Status with google.rpc details as payloads, and its form on the wire.
//
// Every error that a client sees has one ErrorInfo (domain "switchyard", a reason, and metadata with every value that
// the message names; `retryable`: whether the same call may succeed later, or at another server).  If it is known when
// another try makes sense, the error also has a RetryInfo and the trailer `grpc-retry-pushback-ms`.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"
#include "scheduler/base/text/quote.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::rpc {

using ErrorMetadata = std::initializer_list<std::pair<const char*, std::string>>;

// A status with an ErrorInfo.  Metadata keys are lowerCamel: field, limit, actual …
absl::Status MakeError(absl::StatusCode code, v1::ErrorReason reason, absl::string_view message,
                       ErrorMetadata metadata = {});
// Adds a RetryInfo: try again after `delay`.
absl::Status WithRetry(absl::Status status, absl::Duration delay);
// INVALID_ARGUMENT, BAD_FIELD: "<field>: <what is wrong>", with field, limit and actual as metadata.
absl::Status BadField(absl::string_view field, absl::string_view problem, absl::string_view limit,
                      absl::string_view actual);

// Returns the reason given to MakeError; ERROR_REASON_UNSPECIFIED for any other status.
v1::ErrorReason ReasonOf(const absl::Status& status);

// Convert a status with its ErrorInfo and RetryInfo to a message and back.  Other payloads are dropped.
google::rpc::Status ToRpcStatus(const absl::Status& status);
absl::Status FromRpcStatus(const google::rpc::Status& message);

// Returns the status on the wire.  A status without ErrorInfo gets one: DEADLINE for kDeadlineExceeded, BAD_FIELD for
// kInvalidArgument, else ENGINE_ERROR.  Messages are cut to 2 KB and stay valid UTF-8.
grpc::Status ToGrpcStatus(const absl::Status& status, absl::string_view request_id);

// The payloads of a status that a client received; the reason is empty without ErrorInfo.
struct ErrorView {
  std::string reason;
  google::rpc::ErrorInfo details;
  absl::Duration retry_after = absl::ZeroDuration();  // zero: no advice
};
ErrorView ViewError(const grpc::Status& status);

}  // namespace switchyard::rpc
