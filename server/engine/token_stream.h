// The bounded path of one request's output from the engine loop to its reactor.
//
// A reader that does not keep up never blocks the engine: chunks of the same choice are joined while they wait, so at
// most one chunk per choice and no more than the request's own output is held (bounded by the context length).  How
// long the oldest has been waiting is known: the engine ends the request as SLOW_READER past its limit.  What is popped
// is cut so that its message stays below the 4 MiB that a client takes by default, however many logprobs were asked
// for.
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
  // The end: OK after the last chunk, or the error that ends the call.  Later calls do nothing.
  void Close(absl::Status status);
  // Since when the oldest chunk has been waiting; InfiniteFuture if none is.
  absl::Time WaitingSince() const;

  // --- reactor ---
  // `notify` is called from the engine's thread whenever there is something new, never concurrently with itself.
  void Attach(std::function<void()> notify);
  // No notify runs during or after this.
  void Detach();
  // The next chunk, or the next part of a long one (then not yet finished); nullopt when there is none now.
  std::optional<OutputChunk> Pop(absl::Time now);
  // Whether everything was popped and the stream closed; then *status is its end.
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

// Cuts off the part of `chunk` that fits `budget` entries (the logprob of one token, or kExpertsPerEntry experts), at
// least one position: prompt logprobs first, then expert paths, then tokens with their logprobs; text and end stay.
// nullopt when the whole fits.
inline constexpr size_t kEntriesPerMessage = 16384;
inline constexpr size_t kExpertsPerEntry = 64;
std::optional<OutputChunk> CutChunk(OutputChunk* chunk, size_t budget = kEntriesPerMessage);

// RESOURCE_EXHAUSTED, SLOW_READER: the client left its stream unread for `limit`.
absl::Status SlowReader(absl::Duration limit);

// Appends `next` to `chunk`.  REQUIRES: the same choice, `next` follows.
void JoinChunk(OutputChunk* chunk, OutputChunk next);
// Appends `next` to `paths`.  REQUIRES: `next` follows.
void JoinPaths(ExpertPaths* paths, ExpertPaths next);

}  // namespace switchyard::server
