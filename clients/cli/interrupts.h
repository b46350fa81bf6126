// Ctrl-C while a command runs: a function of the command's instead of the end of the process.
//
// Create it before any other thread exists: SIGINT is blocked in this thread and those it starts, and a thread of this
// object takes it.  The function runs on that thread and must not block.
#pragma once

#include <signal.h>

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace switchyard {

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();  // SIGINT does again what it did before

  // What Ctrl-C does from now on.  When this returns, the former function no longer runs.
  void Handle(std::function<void()> on_interrupt);

 private:
  void Watch();

  sigset_t old_mask_;
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  absl::Mutex mu_;
  std::function<void()> on_interrupt_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace switchyard
