#include "clients/cpp/client_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"

namespace switchyard::client {
namespace {

constexpr char kDetailsUrl[] = "type.googleapis.com/google.rpc.Status";
constexpr char kUnreachable[] = "UNREACHABLE";

struct Advice {
  const char* reason;
  const char* text;
};
constexpr Advice kAdvice[] = {
    {kUnreachable,
     "is the server running? start it with: switchyard-server --model=DIR (or give its address: --server=HOST:PORT)"},
    {"NO_TOKENIZER", "send --token_ids=1,2,3, or start the server with --tokenizer=FILE"},
    {"NO_CHAT_TEMPLATE", "send --text instead, or start the server with --chat_template=FILE"},
    {"MODEL_NOT_FOUND", "`switchyard status` names the served model; without --model requests go to it"},
    {"MODEL_LOADING", "wait for it with: switchyard status --wait=60"},
    {"WORKER_LOST",
     "send the request again once `switchyard status --wait=60` says ready; with the same --seed the text is the same"},
    {"DRAINING", "the server is being stopped; use another one"},
    {"QUEUE_FULL", "the server is busy; send fewer requests at once"},
    {"TOO_MANY_STREAMS", "the server has too many open requests; lower --concurrency"},
    {"PROMPT_TOO_LONG", "shorten the prompt or lower --max_tokens; `switchyard status` shows the context"},
    {"REQUEST_EXISTS", "give another --request_id, or none: the server then draws one"},
    {"REQUEST_NOT_FOUND", "it has ended, or never was"},
    {"DEADLINE", "raise --timeout or lower --max_tokens"},
    {"SLOW_READER", "read the stream faster (is the output blocked?)"},
    {"JOB_NOT_FOUND", "`switchyard train list` names the jobs"},
    {"JOB_EXISTS", "give another --request_id: this one has made a job of another spec"},
    {"NO_TRAINING", "start the server with training workers; `switchyard-server --help` says how"},
    {"TOO_FEW_WORKERS", "lower --workers, or start the server with more training workers"},
    {"DISK_FULL", "make room on the server's disk, or lower --keep_last"},
    {"DATASET_CHANGED", "put the files back as they were, then: switchyard train resume ID"},
    {"TOO_MANY_JOBS", "wait for one to end, cancel one (switchyard train list --state=pending), or delete old ones"},
    {"NO_KEY", "give the key by --api_key_file=FILE or in the environment variable SWITCHYARD_API_KEY"},
    {"WRONG_ROLE", "use a key of another role, or ask who runs the server for one"},
    {"QUOTA", "wait, or ask who runs the server for a larger quota"},
    {"DISK_QUOTA",
     "delete jobs that have ended (switchyard train delete ID), lower --keep_last, or ask who runs the server for a "
     "larger disk_gib"},
    {"TEXT_LIMIT", "shorten the messages; the model's chat template or tokenizer takes too much work for them"},
};

absl::string_view AdviceFor(absl::string_view reason) {
  for (const Advice& advice : kAdvice) {
    if (reason == advice.reason) return advice.text;
  }
  return "";
}

// Returns the reason for gRPC's own errors, which have no details: connection, deadline or cancellation.
std::string ReasonWithoutDetails(absl::StatusCode code) {
  if (code == absl::StatusCode::kUnavailable) return kUnreachable;
  if (code == absl::StatusCode::kDeadlineExceeded) return "DEADLINE";
  return code == absl::StatusCode::kInvalidArgument ? "BAD_INPUT" : absl::StatusCodeToString(code);
}

}  // namespace

absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view address) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  std::string message = status.error_message();
  if (status.error_details().empty()) {
    if (code == absl::StatusCode::kUnavailable) message = absl::StrCat("cannot reach ", address, ": ", message);
    if (code == absl::StatusCode::kDeadlineExceeded)
      message = absl::StrCat("no answer from ", address, " within the time limit");
    if (code == absl::StatusCode::kCancelled) message = "cancelled";
    if (code == absl::StatusCode::kUnimplemented) {
      message = absl::StrCat(address, " does not know this call of switchyard.v1: ", message);
    }
    if (message.empty()) message = absl::StrCat(address, " gave no reason");
  }
  absl::Status out(code, message);
  // A view: errors.cc of proto/support says why.
  const std::string details = status.error_details();
  if (!details.empty()) out.SetPayload(kDetailsUrl, absl::Cord(absl::string_view(details)));
  return out;
}

absl::Status ClientError(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  absl::Status status(code, message);
  status.SetPayload("switchyard/client_reason", absl::Cord(reason));
  return status;
}

ErrorDescription Describe(const absl::Status& status) {
  ErrorDescription out;
  out.code = absl::StatusCodeToString(status.code());
  out.message = std::string(status.message());
  if (const auto payload = status.GetPayload(kDetailsUrl)) {
    const rpc::ErrorView view =
        rpc::ViewError(grpc::Status(static_cast<grpc::StatusCode>(status.code()), out.message, std::string(*payload)));
    out.reason = view.reason;
    out.retry_after = view.retry_after;
    out.metadata.insert(view.details.metadata().begin(), view.details.metadata().end());
  } else if (const auto reason = status.GetPayload("switchyard/client_reason")) {
    out.reason = std::string(*reason);
  }
  if (out.reason.empty()) out.reason = ReasonWithoutDetails(status.code());
  out.advice = std::string(AdviceFor(out.reason));
  // It runs, but this is another of its ports.
  if (out.reason == kUnreachable && absl::StrContains(out.message, "; gRPC is on "))
    out.advice = "give the address of that port: --server=HOST:PORT";
  return out;
}

std::string Explain(const absl::Status& status) {
  const ErrorDescription error = Describe(status);
  std::string text = error.message;
  if (error.reason != error.code && error.reason != "BAD_INPUT" && error.reason != kUnreachable) {
    absl::StrAppend(&text, " [", error.code, " ", error.reason, "]");
  }
  if (error.retry_after > absl::ZeroDuration())
    absl::StrAppend(&text, "\n  try again in ", absl::FormatDuration(error.retry_after));
  if (!error.advice.empty()) absl::StrAppend(&text, "\n  ", error.advice);
  return text;
}

}  // namespace switchyard::client
