#include "server/fleet/local_fleet.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "server/fleet/loss_causes.h"

namespace switchyard::server {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(20);
// As many looks in a row must find a worker stopped; that counts no time in which this process was stopped itself.
constexpr int kLooksStopped = 10;
constexpr int kRefused = 2;
constexpr int kCannotRun = 127;  // exec failed

std::string HowItEnded(int status) {
  if (WIFEXITED(status)) return absl::StrCat("exit code ", WEXITSTATUS(status));
  return absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
}

// Returns the reason that a worker wrote into its file; may be empty.
std::string ReadRefusal(int fd) {
  char text[4096];
  const ssize_t size = fd < 0 ? 0 : pread(fd, text, sizeof(text), 0);
  const absl::string_view words(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return absl::StrReplaceAll(absl::StripAsciiWhitespace(words), {{"\n", "; "}});  // one line, as the last one counts
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

LocalFleet::LocalFleet(Options options) : options_(std::move(options)), children_(options_.count) {}

LocalFleet::~LocalFleet() { Stop(absl::Seconds(2)); }

absl::Status LocalFleet::Start() {
  absl::MutexLock lock(&mu_);
  for (int index = 0; index < options_.count; ++index) RETURN_IF_ERROR(Spawn(index));
  // PR_SET_PDEATHSIG depends on the thread that forks: from now on only the watcher forks, which lives as long as the
  // fleet.
  watcher_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

absl::Status LocalFleet::Spawn(int index) {
  std::vector<std::string> args = options_.args(index);
  args.insert(args.begin(), options_.binary);
  UniqueFd refusal(memfd_create("refusal", MFD_CLOEXEC));
  const int refusal_fd = refusal.get();
  if (refusal_fd >= 0) args.push_back(absl::StrCat("--refusal_file=/proc/self/fd/", refusal_fd));
  const std::vector<char*> argv = Pointers(args);
  const pid_t server = getpid();
  // posix_spawn would be cheaper, but PDEATHSIG must be set in the child.  Between fork and exec only async-signal-safe
  // calls are allowed.
  const pid_t pid = fork();
  if (pid < 0) return absl::UnavailableError(absl::StrCat("cannot fork a worker: ", std::strerror(errno)));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != server) _exit(1);
    setpgid(0, 0);  // Ctrl-C is the server's to handle: it stops its workers in order
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (refusal_fd >= 0) fcntl(refusal_fd, F_SETFD, 0);  // only this child inherits it
    execv(argv[0], argv.data());
    _exit(kCannotRun);
  }
  children_[index].pid = pid;
  children_[index].refusal = std::move(refusal);
  children_[index].looks_stopped = 0;
  children_[index].started = MonotonicNow();
  children_[index].oom_kills = LossCauses::OomKills();
  LogInfo("started ", options_.what, " ", index, ", pid ", pid);
  return absl::OkStatus();
}

std::string LocalFleet::Reap(int index, int status, absl::Time now) {
  Child& child = children_[index];
  const std::string how = HowItEnded(status);
  child.last_pid = std::exchange(child.pid, -1);
  child.last_end = how;
  ++child.deaths;
  child.start_at = now + child.pause.After(status, now - child.started, LossCauses::OomKills() > child.oom_kills);
  const bool refused = WIFEXITED(status) && (WEXITSTATUS(status) == kRefused || WEXITSTATUS(status) == kCannotRun);
  if (stopping_) return "";
  LogWarn(options_.what, " ", index, " (pid ", child.last_pid, ") ended: ", how);
  const std::string why = refused ? ReadRefusal(child.refusal.get()) : std::string();
  if (finalized_ && refused) {
    LogWarn(options_.what, " ", index, " could not serve what was served before (",
            why.empty() ? "it gave no reason" : why, "); trying again in ", absl::FormatDuration(child.start_at - now));
  }
  const int limit = options_.max_deaths_unfinalized;
  child.refused = !finalized_ && (refused || (limit > 0 && child.deaths >= limit));
  if (!child.refused) return "";
  if (!refused) {
    return absl::StrCat("worker ", index, " (rank ", index, ") ended ", child.deaths,
                        " times before the group formed, at last with ", how);
  }
  if (WEXITSTATUS(status) == kCannotRun) return absl::StrCat("cannot run ", options_.binary);
  return absl::StrCat("worker ", index, " (rank ", index, ") refused to start",
                      why.empty() ? " (exit code 2; it gave no reason)" : absl::StrCat(": ", why));
}

void LocalFleet::EndIfStopped(int index) {
  Child& child = children_[index];
  siginfo_t seen = {};  // si_pid stays 0 while it runs
  const bool asked = waitid(P_PID, child.pid, &seen, WSTOPPED | WNOHANG | WNOWAIT) == 0;
  child.looks_stopped = asked && seen.si_pid != 0 ? child.looks_stopped + 1 : 0;
  if (child.looks_stopped != kLooksStopped) return;
  LogWarn(options_.what, " ", index, " (pid ", child.pid, ") is stopped, and is killed");
  kill(child.pid, SIGKILL);
}

void LocalFleet::Reap() {
  std::vector<std::string> fatal;
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = MonotonicNow();
    for (int index = 0; index < static_cast<int>(children_.size()); ++index) {
      Child& child = children_[index];
      int status = 0;
      if (child.pid > 0 && waitpid(child.pid, &status, WNOHANG) == child.pid) {
        if (std::string text = Reap(index, status, now); !text.empty()) fatal.push_back(std::move(text));
      }
      if (child.pid > 0 && !stopping_) EndIfStopped(index);
      if (child.pid < 0 && !child.refused && !stopping_ && now >= child.start_at) {
        ++restarts_;
        if (options_.on_restart) options_.on_restart();
        if (const absl::Status spawned = Spawn(index); !spawned.ok()) {
          LogError(spawned.message());
          child.start_at = now + absl::Seconds(1);
        }
      }
    }
  }
  for (std::string& text : fatal) options_.on_fatal(std::move(text));
}

void LocalFleet::Watch() {
  for (;;) {
    Reap();
    absl::MutexLock lock(&mu_);
    const bool gone = std::all_of(children_.begin(), children_.end(), [](const Child& c) { return c.pid < 0; });
    if (stopping_ && gone) {
      watcher_done_ = true;
      return;
    }
    // Stop ends the wait early.  Polling is cheap, and free of the races of SIGCHLD handlers with gRPC's threads.
    mu_.AwaitWithTimeout(absl::Condition(&stopping_), stopping_ ? absl::ZeroDuration() : kPoll);
    if (stopping_) {
      mu_.Unlock();
      absl::SleepFor(absl::Milliseconds(5));
      mu_.Lock();
    }
  }
}

void LocalFleet::Kill(int index, int64_t pid) {
  absl::MutexLock lock(&mu_);
  if (index < 0 || index >= static_cast<int>(children_.size()) || children_[index].pid != pid) return;
  kill(children_[index].pid, SIGKILL);
}

std::string LocalFleet::EndOf(int index, int64_t pid) const {
  absl::MutexLock lock(&mu_);
  if (index < 0 || index >= static_cast<int>(children_.size())) return "";
  const Child& child = children_[index];
  if (child.last_pid == pid) return child.last_end;
  siginfo_t seen = {};  // si_pid stays 0 while it runs
  const bool asked = child.pid == pid && waitid(P_PID, child.pid, &seen, WEXITED | WNOHANG | WNOWAIT) == 0;
  if (!asked || seen.si_pid == 0) return "";
  // Encodes the end as waitpid does; the watcher still has to reap the child.
  return HowItEnded(seen.si_code == CLD_EXITED ? W_EXITCODE(seen.si_status, 0) : seen.si_status);
}

void LocalFleet::Stop(absl::Duration grace) {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (const Child& child : children_) {
      if (child.pid > 0) kill(child.pid, SIGTERM);
    }
    if (!watcher_.joinable()) return;
    if (!mu_.AwaitWithTimeout(absl::Condition(&watcher_done_), grace)) {
      for (const Child& child : children_) {
        if (child.pid > 0) kill(child.pid, SIGKILL);
      }
    }
  }
  watcher_.join();
}

std::vector<pid_t> LocalFleet::Pids() const {
  absl::MutexLock lock(&mu_);
  std::vector<pid_t> pids;
  for (const Child& child : children_) pids.push_back(child.pid);
  return pids;
}

}  // namespace switchyard::server
