// Handler of Ctrl-C: while it exists, Ctrl-C calls a command's function instead of ending the process.
//
// Only one object may exist at a time.  The function runs on the object's own thread, not in the signal handler, and
// must not block.
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
  ~Interrupts();  // restores the former handling of SIGINT
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Sets the function that Ctrl-C calls.  When this returns, the former function no longer runs.
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
