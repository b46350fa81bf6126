// Errors of calls, described for a person and for a program.
//
// A call's absl::Status has the server's code and message and carries the server's details (ErrorInfo, RetryInfo) as a
// payload.  Describe() takes it apart; Explain() is the text that a terminal shows.  All functions are pure.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace grpc {
class Status;
}

namespace switchyard::client {

// Converts a call's status.  The message names `address` if the connection failed.  OK stays OK.
absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view address);

// Makes an error of the client itself (no server was asked), with a reason that programs can compare.
absl::Status ClientError(absl::StatusCode code, absl::string_view reason, absl::string_view message);

struct ErrorDescription {
  std::string code;  // "UNAVAILABLE"
  std::string
      reason;  // "WORKER_LOST": an ErrorReason of inference.proto, or UNREACHABLE, CANCELLED, BAD_INPUT; never empty
  std::string message;                                // what, where, limit, actual
  std::string advice;                                 // what to do next; may be empty
  absl::Duration retry_after = absl::ZeroDuration();  // zero: the server gave no advice
  std::map<std::string, std::string> metadata;        // the server's: field, limit, actual, requestId ...
};
// REQUIRES: !status.ok()
ErrorDescription Describe(const absl::Status& status);

// "1024 requests wait, limit 1024 [RESOURCE_EXHAUSTED QUEUE_FULL]\n  try again in 500ms\n  the server is busy; ..."
std::string Explain(const absl::Status& status);

}  // namespace switchyard::client
