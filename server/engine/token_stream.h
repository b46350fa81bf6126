// Bounded queue of one request's output, from the engine loop to its reactor.
//
// A slow reader never blocks the engine: chunks of the same choice are joined while they wait, so the stream holds at
// most one chunk per choice, and no more than the request's own output (bounded by the context length).  The engine
// ends a request whose oldest chunk has waited for too long (SLOW_READER).  Pop cuts chunks so that a message stays
// below the 4 MiB that a client accepts by default, however many logprobs it asked for.
//
// Thread-safe.  Owned by the engine loop's request and by the reactor (two owners: either may outlive the other).
#pragma once

#include <deque>
#include <functional>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/engine/request.h"

namespace switchyard::server {

class TokenStream {
 public:
  // --- engine loop ---
  void Push(OutputChunk chunk, absl::Time now);
  // Ends the stream with OK after the last chunk, or with the call's error.  Later calls do nothing.
  void Close(absl::Status status);
  // Time since which the oldest chunk waits; InfiniteFuture if none does.
  absl::Time WaitingSince() const {
    absl::MutexLock lock(&mu_);
    return waiting_since_;
  }

  // This process stood still for `pause` until now: that was no wait for the reader.
  void Forgive(absl::Duration pause, absl::Time now);

  // --- reactor --- Sets `notify`, which is called on the engine's thread when there is something new, never
  // concurrently with itself.
  void Attach(std::function<void()> notify);
  // No notify runs after this has returned.
  void Detach() { Attach(nullptr); }
  // Returns the next chunk, or the next part of a long one (`finished` is then false); nullopt if none waits.
  std::optional<OutputChunk> Pop(absl::Time now);
  // Its end, if nothing more is pushed; chunks may wait.
  std::optional<absl::Status> end() const {
    absl::MutexLock lock(&mu_);
    return closed_ ? std::make_optional(end_) : std::nullopt;
  }
  // Whether the stream is closed and everything was popped; if so sets *status to its end.
  bool Finished(absl::Status* status) const;

 private:
  void Notify();

  mutable absl::Mutex mu_;
  std::deque<OutputChunk> chunks_ ABSL_GUARDED_BY(mu_);
  absl::Time waiting_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);

  absl::Mutex notify_mu_;
  std::function<void()> notify_ ABSL_GUARDED_BY(notify_mu_);
};

// Cuts a part of at most `budget` entries (a token's logprob, or kExpertsPerEntry experts), and at least one position,
// from the front of `chunk`: prompt logprobs first, then expert paths, then tokens with their logprobs.  Text and end
// stay in `chunk`.  Returns nullopt if all of it fits.
inline constexpr size_t kEntriesPerMessage = 16384;
inline constexpr size_t kExpertsPerEntry = 64;
std::optional<OutputChunk> CutChunk(OutputChunk* chunk, size_t budget = kEntriesPerMessage);

// Returns RESOURCE_EXHAUSTED (SLOW_READER): the client left its stream unread for `limit`.
absl::Status SlowReader(absl::Duration limit);

// Appends `next` to `chunk`.  REQUIRES: the same choice, `next` follows.
void JoinChunk(OutputChunk* chunk, OutputChunk next);
// Appends `next` to `paths`.  REQUIRES: `next` follows.
void JoinPaths(ExpertPaths* paths, ExpertPaths next);

}  // namespace switchyard::server
