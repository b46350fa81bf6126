// Runs requests that are given as flags (one) or as JSON lines (many); shared by generate, tokenize and detokenize.
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

// Sends a request.  Fills *answer also on failure, with the part that was received, or leaves it null.  Thread-safe.
template <class Request>
using AskFn = std::function<absl::Status(const Request& request, Json* answer)>;

struct LineFlags {
  std::string input;  // file of JSON lines; "-" = stdin; "" = the flags describe one request
  int concurrency = 16;
  bool json = false;

  // Adds the flags under their own title in --help.
  void AddTo(FlagSet* flags);
};

// Opens the file of --input; returns the console's input for "-".
absl::StatusOr<std::shared_ptr<std::istream>> OpenInput(Console& console, const std::string& path);

// Makes one line of JSON of an answer, with an "error" if the request failed.
LineAnswer AsLine(const absl::Status& status, Json answer);

// Parses a line, which must be a JSON object.
absl::StatusOr<Json> ParseLine(const std::string& line);

// Makes a request from one line; flags that were given are its defaults.
template <class Request>
absl::StatusOr<Request> RequestFrom(const Json& object, const Json& defaults) {
  Json merged = defaults;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_null()) merged[name] = value;  // null counts as absent
  }
  return BuildRequest<Request>(merged);
}
template <class Request>
absl::StatusOr<Request> RequestFromLine(const std::string& line, const Json& defaults) {
  ASSIGN_OR_RETURN(const Json object, ParseLine(line));
  return RequestFrom<Request>(object, defaults);
}

// Retries for up to a minute while the server is full and says when to try again.
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

// Answers every line of the input, in order; returns the exit code.  `as_text` formats answers without --json.
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
