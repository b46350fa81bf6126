// Errors on their way to a client: an absl::Status with google.rpc details as payloads, and its form on the wire.
//
// Every error that a client sees has one ErrorInfo (domain "switchyard", a reason, and metadata with every value that
// the message names; `retryable`: whether the same call may succeed later, or at another server).  Where it is known
// when another try makes sense, it also has a RetryInfo and the trailer `grpc-retry-pushback-ms`.
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
// Adds the advice to try again after `delay`.
absl::Status WithRetry(absl::Status status, absl::Duration delay);
// INVALID_ARGUMENT, BAD_FIELD: "<field>: <what is wrong>", with field, limit and actual as metadata.
absl::Status BadField(absl::string_view field, absl::string_view problem, absl::string_view limit,
                      absl::string_view actual);

// The reason given to MakeError; ERROR_REASON_UNSPECIFIED for another status.
v1::ErrorReason ReasonOf(const absl::Status& status);

// A status with its ErrorInfo and RetryInfo as details, and back.  Other payloads are dropped.
google::rpc::Status ToRpcStatus(const absl::Status& status);
absl::Status FromRpcStatus(const google::rpc::Status& message);

// The status on the wire.  One without ErrorInfo gets one: DEADLINE for kDeadlineExceeded, else ENGINE_ERROR
// (BAD_FIELD for kInvalidArgument).  Messages are cut to 2 KB and stay valid UTF-8.
grpc::Status ToGrpcStatus(const absl::Status& status, absl::string_view request_id);

// The other way, for clients: the payloads of a received status; an empty reason when there is none.
struct ErrorView {
  std::string reason;
  google::rpc::ErrorInfo details;
  absl::Duration retry_after = absl::ZeroDuration();  // zero: no advice
};
ErrorView ViewError(const grpc::Status& status);

}  // namespace switchyard::rpc
