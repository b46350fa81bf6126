// When training may run on the workers that serve: slices of time, which the engine sends as plans without a step.
//
// Nothing to serve: slice after slice, each renewed before it is over, so that training stops by itself where the
// server is gone.  A step that is sent ends the slice.  While there is something to serve training gets nothing, or,
// with a share, slices whenever that much is owed to it, for which the next step waits.  The engine's thread decides;
// what is told may be asked from any thread.  Reads no clock.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard::server {

class TrainSlices {
 public:
  static constexpr absl::Duration kSlice = absl::Milliseconds(250);
  static constexpr absl::Duration kRenewBefore = absl::Milliseconds(125);
  // With a share: for how long a step waits at a time; what a step counts at most, however late it is.
  static constexpr absl::Duration kOwedSlice = absl::Milliseconds(50);
  static constexpr absl::Duration kLongestStep = absl::Seconds(1);

  // share: of the time in which there is something to serve, [0, 1).
  explicit TrainSlices(double share) : share_(share) {}

  // --- any thread ---
  // Whether a job is there that would train.
  void Want(bool wanted) { wanted_ = wanted; }
  bool wanted() const { return wanted_; }
  // For how long training could run, in all.
  absl::Duration given(absl::Time now) const;
  int64_t num_slices() const;  // that began, renewals not counted

  // --- the engine's ---
  // The slice to send, now that no step is under way and none is to be sent; zero: none.
  absl::Duration Next(absl::Time now);
  // A step was sent, or the group is gone.
  void End(absl::Time now);
  // A step is done that was sent then: the time since, as far as no other step's, counts towards the share.
  void StepDone(absl::Time sent, absl::Time now);
  // Whether steps are to wait, as training is owed a slice or has it now.
  bool Owes(absl::Time now) const { return wanted_ && (now < owed_until_ || owed_ >= kOwedSlice); }
  // They do, and none is under way any more: until when they wait from now on.  REQUIRES: Owes(now).
  absl::Time PayOwed(absl::Time now);
  // There is nothing to serve: nothing is owed.
  void Idle() { owed_ = absl::ZeroDuration(); }

 private:
  const double share_;
  std::atomic<bool> wanted_{false};
  absl::Duration owed_;                              // of the engine's thread
  absl::Time owed_until_ = absl::InfinitePast();     // likewise: of the slice for which a step waits
  absl::Time counted_until_ = absl::InfinitePast();  // likewise: by steps that are done
  mutable absl::Mutex mu_;
  absl::Time begin_ ABSL_GUARDED_BY(mu_);                         // of the slice
  absl::Time until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();  // of it; InfinitePast: there is none
  absl::Duration given_ ABSL_GUARDED_BY(mu_);                     // by those before
  int64_t num_slices_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace switchyard::server
