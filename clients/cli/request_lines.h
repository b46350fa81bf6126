// The part that generate, tokenize and detokenize have in common: one request as flags, or many as JSON lines.
#pragma once

#include <functional>
#include <istream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "clients/cli/command.h"
#include "clients/cli/json.h"
#include "clients/cli/ordered_batch.h"
#include "clients/cli/request_flags.h"
#include "clients/cpp/client_error.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::cli {

// Asks the server; fills *answer also on failure, with what had come (or leaves it null).  Thread-safe.
template <class Request>
using AskFn = std::function<absl::Status(const Request& request, Json* answer)>;

struct LineFlags {
  std::string input;  // file of JSON lines, "-" = stdin, "" = the flags are the request
  int concurrency = 16;
  bool json = false;

  // Under a title of their own.
  void AddTo(FlagSet* flags);
};

// The file of --input, or the console's input for "-".
absl::StatusOr<std::shared_ptr<std::istream>> OpenInput(Console& console, const std::string& path);

// One line's answer as JSON, with an "error" if it failed.
LineAnswer AsLine(const absl::Status& status, Json answer);

// The JSON object that a line is.
absl::StatusOr<Json> ParseLine(const std::string& line);

// A request from one line; flags that were given are defaults.
template <class Request>
absl::StatusOr<Request> RequestFrom(const Json& object, const Json& defaults) {
  Json merged = defaults;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_null()) merged[name] = value;  // null: as if it were not there
  }
  return BuildRequest<Request>(merged);
}
template <class Request>
absl::StatusOr<Request> RequestFromLine(const std::string& line, const Json& defaults) {
  ASSIGN_OR_RETURN(const Json object, ParseLine(line));
  return RequestFrom<Request>(object, defaults);
}

// Asks again, when the server is full and says when to try again, for up to a minute.
template <class Request>
absl::Status AskPatiently(const AskFn<Request>& ask, const Request& request, Json* answer) {
  const absl::Time end = absl::Now() + absl::Minutes(1);
  for (;;) {
    const absl::Status status = ask(request, answer);
    if (!absl::IsResourceExhausted(status)) return status;
    const absl::Duration pause = client::Describe(status).retry_after;
    if (pause <= absl::ZeroDuration() || absl::Now() + pause > end) return status;
    *answer = Json();
    absl::SleepFor(pause);
  }
}

// Every line of the input, in order; returns the exit code.  `as_text` is what is written without --json.
template <class Request>
absl::StatusOr<int> RunLines(Console& console, const LineFlags& flags, const Json& defaults, const AskFn<Request>& ask,
                             const std::function<std::string(const Json&)>& as_text) {
  ASSIGN_OR_RETURN(const std::shared_ptr<std::istream> in, OpenInput(console, flags.input));
  absl::Mutex err_mu;
  const auto answer = [&](int line_number, const std::string& line) {
    Json json;
    const absl::StatusOr<Request> request = RequestFromLine<Request>(line, defaults);
    absl::Status status = request.ok() ? AskPatiently(ask, *request, &json)
                                       : BadInput(absl::StrCat("line ", line_number, ": ", request.status().message()));
    if (!status.ok()) {
      absl::MutexLock lock(&err_mu);
      console.err << "switchyard: " << (request.ok() ? absl::StrCat("line ", line_number, ": ") : "")
                  << client::Explain(status) << std::endl;
    }
    if (flags.json) return AsLine(status, std::move(json));
    return LineAnswer{status.ok() ? as_text(json) : "", status.ok()};
  };
  const int failed = AnswerLines(*in, console.out, flags.concurrency, answer);
  if (failed > 0)
    console.err << "switchyard: " << failed << (failed == 1 ? " request" : " requests") << " failed" << std::endl;
  return failed > 0 ? kExitFailed : kExitOk;
}

}  // namespace switchyard::cli
