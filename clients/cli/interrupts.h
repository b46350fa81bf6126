// Ctrl-C while a command runs: a function of the command's instead of the end of the process.
//
// One at a time.  The function runs on a thread of this object (not in the signal handler) and must not block.
#pragma once

#include <signal.h>

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace switchyard::cli {

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();  // SIGINT does again what it did before
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // What Ctrl-C does from now on.  When this returns, the former function no longer runs.
  void Handle(std::function<void()> on_interrupt);

 private:
  void Watch();

  struct sigaction old_action_;
  int stop_fd_ = -1;
  absl::Mutex mu_;
  std::function<void()> on_interrupt_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace switchyard::cli
