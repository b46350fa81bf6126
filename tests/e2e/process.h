// A child process of a test, with its output in a file.
//
// Thread-compatible.  Dies with the test (PR_SET_PDEATHSIG) and at the latest with this object (SIGKILL, by pid).
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace switchyard {

class Process {
 public:
  // `args[0]` is the program.  stdout and stderr go to a file of its own.  Null when it cannot be started.
  static std::unique_ptr<Process> Start(const std::vector<std::string>& args);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // The exit code (128 + n for signal n), or nullopt when it still runs after `timeout`.
  std::optional<int> Wait(absl::Duration timeout);
  // Returns everything that the process has written so far.
  std::string Output() const;
  // Waits until the output contains `text`; returns false if the process ends first, or after `timeout`.
  bool WaitForOutput(const std::string& text, absl::Duration timeout);

 private:
  Process(pid_t pid, std::string path) : pid_(pid), path_(std::move(path)) {}
  const pid_t pid_;
  const std::string path_;
  std::optional<int> exit_code_;
};

// A program of this build: from SY_TEST_BIN_DIR, which sy_test sets.
std::string Binary(const std::string& name);

// Calls `done` every few milliseconds until it is true; false after `timeout`.
template <class DoneFn>
bool WaitUntil(DoneFn done, absl::Duration timeout) {
  const absl::Time give_up = absl::Now() + timeout;
  while (!done()) {
    if (absl::Now() >= give_up) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

}  // namespace switchyard
