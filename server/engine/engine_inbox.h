// The inbox of the engine's thread: commands that other threads post and that it runs, one after the other.
//
// Thread-safe; Post never blocks.  Bounded by what posts: the server's open streams (each has one submission and one
// cancellation) and the workers' plans in flight.
#pragma once

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard::server {

class EngineInbox {
 public:
  using Command = absl::AnyInvocable<void()>;

  // False: the engine has ended, nothing will run.
  bool Post(Command command);
  // The engine is to end.
  void Stop();

  // --- the engine's thread ---
  // Swaps `commands`, which is empty, with what was posted; waits for it until `deadline` at most.  False: to end.
  bool Await(absl::Time deadline, std::vector<Command>* commands);
  // Ends it: the last commands.
  std::vector<Command> Close();

 private:
  absl::Mutex mu_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace switchyard::server
