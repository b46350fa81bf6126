// Queue of commands that other threads post and the engine's thread runs in order.
//
// Thread-safe; Post never blocks.  Its length is bounded by the server's open streams (one submission and one
// cancellation each) and by the workers' plans in flight.
#pragma once

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/base/clock.h"

namespace switchyard::server {

class EngineInbox {
 public:
  using Command = absl::AnyInvocable<void()>;

  // Returns false if the engine has ended; the command will then not run.
  bool Post(Command command) {
    absl::MutexLock lock(&mu_);
    if (closed_) return false;
    commands_.push_back(std::move(command));
    return true;
  }
  // Makes Await return false.
  void Stop() {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }

  // --- the engine's thread --- Waits for commands, at most until `deadline`, and swaps them into `commands`, which
  // must be empty.  Returns false after Stop.
  bool Await(absl::Time deadline, std::vector<Command>* commands) {
    absl::MutexLock lock(&mu_);
    const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !commands_.empty(); };
    const absl::Duration left = deadline - MonotonicNow();
    if (left > absl::ZeroDuration()) mu_.AwaitWithTimeout(absl::Condition(&wanted), left);
    if (stopping_) return false;
    commands->swap(commands_);
    return true;
  }
  // Accepts no more commands; returns the last ones.
  std::vector<Command> Close() {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    return std::exchange(commands_, {});
  }

 private:
  absl::Mutex mu_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace switchyard::server
