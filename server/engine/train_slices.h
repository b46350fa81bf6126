// Time slices in which training may run on serving workers; the engine sends them as plans without a step.
//
// While there is nothing to serve, each slice is renewed before it ends; training stops by itself if the server is
// gone. A step that is sent ends the slice.  While there is something to serve, training gets no time, or with a share
// one slice whenever that much is owed to it; the next step waits for it.  Thread-safe where marked, else used on the
// engine's thread.  Reads no clock.
#pragma once

#include <algorithm>
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
  // With a share: how long a step waits at a time, and the most time that one step counts.
  static constexpr absl::Duration kOwedSlice = absl::Milliseconds(50);
  static constexpr absl::Duration kLongestStep = absl::Seconds(1);

  // `share`: training's part of the time in which there is something to serve, [0, 1).
  explicit TrainSlices(double share) : share_(share) {}

  // --- any thread --- Sets whether a job would train.
  void Want(bool wanted) { wanted_ = wanted; }
  bool wanted() const { return wanted_; }
  // Returns the total time in which training could run.
  absl::Duration given(absl::Time now) const {
    absl::MutexLock lock(&mu_);
    return until_ == absl::InfinitePast() ? given_ : given_ + std::min(now, until_) - begin_;
  }
  // Returns the number of slices, without renewals.
  int64_t num_slices() const {
    absl::MutexLock lock(&mu_);
    return num_slices_;
  }

  // --- the engine's thread --- Returns the slice to send while no step is under way or planned; zero: none.
  absl::Duration Next(absl::Time now) {
    if (!wanted_) {
      End(now);
      return absl::ZeroDuration();
    }
    absl::MutexLock lock(&mu_);
    if (until_ - now > kRenewBefore) return absl::ZeroDuration();
    if (until_ < now) {
      if (until_ != absl::InfinitePast()) given_ += until_ - begin_;
      begin_ = now;
      ++num_slices_;
    }
    until_ = now + kSlice;
    return kSlice;
  }
  // Ends the slice: a step was sent, or the group is gone.
  void End(absl::Time now) {
    absl::MutexLock lock(&mu_);
    if (until_ != absl::InfinitePast()) given_ += std::min(now, until_) - begin_;
    until_ = absl::InfinitePast();
  }
  // A step that was sent at `sent` is done: its time, without the part that other steps have counted, adds to the
  // share.
  void StepDone(absl::Time sent, absl::Time now) {
    const absl::Duration took = std::min(now - std::max(sent, counted_until_), kLongestStep);
    counted_until_ = now;
    if (wanted_ && share_ > 0) owed_ += took * share_ / (1 - share_);
  }
  // Whether steps must wait because training is owed a slice or has it now.
  bool Owes(absl::Time now) const { return wanted_ && (now < owed_until_ || owed_ >= kOwedSlice); }
  // Begins the owed slice if it has not begun; returns its end, until which steps wait.  REQUIRES: Owes(now); no step
  // is under way.
  absl::Time PayOwed(absl::Time now) {
    if (now < owed_until_) return owed_until_;
    owed_ -= kOwedSlice;
    return owed_until_ = now + kOwedSlice;
  }
  // There is nothing to serve, so nothing is owed.
  void Idle() { owed_ = absl::ZeroDuration(); }

 private:
  const double share_;
  std::atomic<bool> wanted_{false};
  // Used on the engine's thread:
  absl::Duration owed_;
  absl::Time owed_until_ = absl::InfinitePast();     // end of the slice for which a step waits
  absl::Time counted_until_ = absl::InfinitePast();  // end of the time that finished steps have counted
  mutable absl::Mutex mu_;
  absl::Time begin_ ABSL_GUARDED_BY(mu_);                         // of the slice
  absl::Time until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();  // of the slice; InfinitePast: there is none
  absl::Duration given_ ABSL_GUARDED_BY(mu_);                     // by the slices before
  int64_t num_slices_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace switchyard::server
