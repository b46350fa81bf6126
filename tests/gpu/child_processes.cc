#include "tests/gpu/child_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "scheduler/base/check.h"

namespace switchyard::test {
namespace {

struct Child {
  pid_t pid = 0;
  int output = -1;  // the pipe's end that is read; -1 once the child has ended
  ChildEnd end;
};

std::vector<std::string> EnvironmentOf(const ChildSpec& spec) {
  std::vector<std::string> all = spec.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view name = absl::string_view(*entry).substr(0, absl::string_view(*entry).find('='));
    const bool replaced = std::any_of(spec.environment.begin(), spec.environment.end(), [&](const std::string& own) {
      return absl::StartsWith(own, absl::StrCat(name, "="));
    });
    if (!replaced) all.emplace_back(*entry);
  }
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

Child Start(const ChildSpec& spec) {
  int ends[2] = {-1, -1};
  SY_CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
  SY_CHECK_EQ(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
  posix_spawn_file_actions_t actions;
  SY_CHECK_EQ(posix_spawn_file_actions_init(&actions), 0);
  SY_CHECK_EQ(posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO), 0);
  SY_CHECK_EQ(posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO), 0);
  std::vector<std::string> arguments = {program_invocation_name}, environment = EnvironmentOf(spec);
  arguments.insert(arguments.end(), spec.arguments.begin(), spec.arguments.end());
  Child child;
  SY_CHECK_EQ(posix_spawn(&child.pid, "/proc/self/exe", &actions, nullptr, Pointers(&arguments).data(),
                          Pointers(&environment).data()),
              0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  child.output = ends[0];
  return child;
}

// Takes what is there; false at the end of the output.
bool Read(Child* child) {
  char bytes[4096];
  for (;;) {
    const ssize_t taken = read(child->output, bytes, sizeof(bytes));
    if (taken > 0) {
      child->end.log.append(bytes, static_cast<size_t>(taken));
    } else if (taken == 0) {
      return false;
    } else if (errno != EINTR) {
      return true;
    }
  }
}

void Reap(Child* child) {
  close(child->output);
  child->output = -1;
  int status = 0;
  SY_CHECK_EQ(waitpid(child->pid, &status, 0), child->pid);
  if (!child->end.trouble.empty()) return;
  if (WIFSIGNALED(status)) {
    child->end.trouble = absl::StrCat("ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  } else if (WEXITSTATUS(status) != 0) {
    child->end.trouble = absl::StrCat("exit status ", WEXITSTATUS(status));
  }
}

void KillNow(Child* child, absl::Duration after) {
  kill(child->pid, SIGKILL);
  child->end.trouble = absl::StrCat("killed, as it still ran after ", absl::FormatDuration(after));
  siginfo_t gone;
  waitid(P_PID, static_cast<id_t>(child->pid), &gone, WEXITED | WNOWAIT);  // from here on it writes nothing more
  (void)Read(child);
  Reap(child);
}

}  // namespace

std::vector<ChildEnd> RunChildren(const std::vector<ChildSpec>& specs, const ChildLimits& limits) {
  const absl::Time began = absl::Now();
  absl::Time deadline = began + limits.all;
  std::vector<Child> children;
  for (const ChildSpec& spec : specs) children.push_back(Start(spec));
  for (;;) {
    std::vector<pollfd> outputs;
    std::vector<Child*> running;
    for (Child& child : children) {
      if (child.output < 0) continue;
      running.push_back(&child);
      outputs.push_back({.fd = child.output, .events = POLLIN, .revents = 0});
    }
    if (running.empty()) break;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      for (Child* child : running) KillNow(child, absl::Now() - began);
      break;
    }
    (void)poll(outputs.data(), outputs.size(), static_cast<int>(absl::ToInt64Milliseconds(left) + 1));
    for (size_t i = 0; i < running.size(); ++i) {
      if (outputs[i].revents == 0 || Read(running[i])) continue;
      Reap(running[i]);
      if (!running[i]->end.trouble.empty()) deadline = std::min(deadline, absl::Now() + limits.after_failure);
    }
  }
  std::vector<ChildEnd> ends;
  for (Child& child : children) ends.push_back(std::move(child.end));
  return ends;
}

void LiveAtMost(absl::Duration limit) {
  alarm(static_cast<unsigned>(std::max<int64_t>(1, absl::ToInt64Seconds(limit))));
}

}  // namespace switchyard::test
