#include "server/jobs/spec/model_check.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/strict_json.h"

namespace switchyard::server {
namespace {

constexpr int kCannotRun = 127;  // exec failed
constexpr absl::Duration kReapPoll = absl::Milliseconds(2);
constexpr int64_t kStopPollMs = 50;

// A child whose standard output is `answers`, the write end of a pipe.
absl::StatusOr<pid_t> Spawn(std::vector<std::string> args, int answers) {
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t server = getpid();
  // Between fork and exec only async-signal-safe calls (as in local_fleet.cc).
  const pid_t pid = fork();
  if (pid < 0) return absl::UnavailableError(absl::StrCat("cannot fork: ", std::strerror(errno)));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != server) _exit(1);
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (dup2(answers, STDOUT_FILENO) < 0) _exit(kCannotRun);
    execv(argv[0], argv.data());
    _exit(kCannotRun);
  }
  return pid;
}

// Its end; whoever has not ended by `deadline` is killed.
std::string Reap(pid_t pid, absl::Time deadline) {
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (absl::Now() >= deadline) {
      kill(pid, SIGKILL);
      while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
      break;
    }
    absl::SleepFor(kReapPoll);
  }
  if (WIFEXITED(status)) return absl::StrCat("exit code ", WEXITSTATUS(status));
  return absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
}

// The first line that comes through the pipe, or all up to its end.
absl::StatusOr<std::string> ReadLine(int fd, const ModelCheckOptions& options, absl::Time deadline) {
  std::string text;
  while (text.find('\n') == std::string::npos) {
    struct pollfd wait = {fd, POLLIN, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0) return absl::UnavailableError("it gave no answer in time");
    if (options.stopping && options.stopping()) return absl::UnavailableError("the server stops");
    const int ready = poll(&wait, 1, static_cast<int>(std::min(left, kStopPollMs)));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    char bytes[4096];
    const ssize_t count = read(fd, bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::UnavailableError(absl::StrCat("its answer cannot be read: ", std::strerror(errno)));
    if (count == 0) break;
    text.append(bytes, static_cast<size_t>(count));
    if (static_cast<int64_t>(text.size()) > options.max_answer_bytes) {
      return absl::UnavailableError(absl::StrCat("its answer is longer than ", options.max_answer_bytes, " bytes"));
    }
  }
  return text;
}

absl::StatusOr<TrainedModelFacts> Ask(const ModelCheckOptions& options, const std::string& folder, bool weights) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::UnavailableError(absl::StrCat("no pipe: ", std::strerror(errno)));
  const absl::Cleanup close_read = [fd = ends[0]] { close(fd); };
  const absl::Time deadline = absl::Now() + options.limit;
  const absl::StatusOr<pid_t> pid = Spawn({options.binary, absl::StrCat("--check_model=", folder),
                                           absl::StrCat("--checkpoint_root=", options.checkpoint_root),
                                           absl::StrCat("--check_weights=", weights ? "true" : "false")},
                                          ends[1]);
  close(ends[1]);
  RETURN_IF_ERROR(pid.status());
  const absl::StatusOr<std::string> text = ReadLine(ends[0], options, deadline);
  const bool whole = text.ok() && text->find('\n') != std::string::npos;
  // What follows a line, or an answer that is given up, nobody waits for.
  const std::string end = Reap(*pid, text.ok() && !whole ? deadline : absl::InfinitePast());
  RETURN_IF_ERROR(text.status());
  if (whole) return ParseModelCheckLine(text->substr(0, text->find('\n')));
  return absl::UnavailableError(absl::StrCat("it ended without an answer: ", end,
                                             end == absl::StrCat("exit code ", kCannotRun) ? " (cannot be run)" : ""));
}

}  // namespace

CheckModelFn AskWorkerProgram(ModelCheckOptions options) {
  return [options = std::move(options)](const std::string& folder, bool weights) {
    absl::StatusOr<TrainedModelFacts> facts = Ask(options, folder, weights);
    if (!absl::IsUnavailable(facts.status())) return facts;
    return absl::StatusOr<TrainedModelFacts>(
        absl::UnavailableError(absl::StrCat(options.binary, " --check_model: ", facts.status().message())));
  };
}

absl::StatusOr<TrainedModelFacts> ParseModelCheckLine(absl::string_view line) {
  const nlohmann::json json = ParseStrictJson("answer", line, {}).value_or(nullptr);
  const auto has = [&](const char* key, bool (nlohmann::json::*is)() const) {
    return json.is_object() && json.contains(key) && (json[key].*is)();
  };
  using Json = nlohmann::json;
  if (has("code", &Json::is_number_integer) && has("error", &Json::is_string)) {
    const auto code = static_cast<absl::StatusCode>(json["code"].get<int>());
    if (code == absl::StatusCode::kOk) return absl::UnavailableError("its answer is an error without a code");
    return absl::Status(code, json["error"].get<std::string>());
  }
  if (!has("architecture", &Json::is_string) || !has("context", &Json::is_number_integer) ||
      !has("vocab", &Json::is_number_integer) || !has("experts", &Json::is_number_integer) ||
      !has("router_bias", &Json::is_boolean) || !has("parameters", &Json::is_number)) {
    return absl::UnavailableError(absl::StrCat("its answer is no check of a model: ", Quote(line)));
  }
  return TrainedModelFacts{.architecture = json["architecture"].get<std::string>(),
                           .context = json["context"].get<int64_t>(),
                           .vocab = json["vocab"].get<int64_t>(),
                           .experts = json["experts"].get<int64_t>(),
                           .router_bias = json["router_bias"].get<bool>(),
                           .parameters = json["parameters"].get<double>()};
}

}  // namespace switchyard::server
