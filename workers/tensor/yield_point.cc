#include "workers/tensor/yield_point.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "scheduler/base/check.h"

namespace switchyard {
namespace {

constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();
// About a tenth of a contended core, so that a thread still reaches the gate soon.
constexpr int kNice = 10;

}  // namespace

int64_t YieldPoint::NowNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void YieldPoint::EndSlice(int64_t now) {
  if (slice_begin_ != 0) opened_ += std::min(now, open_until_.load()) - slice_begin_;
  slice_begin_ = 0;
}

void YieldPoint::OpenFor(absl::Duration slice) {
  if (slice <= absl::ZeroDuration()) return;
  int64_t yield_nanos = -1;
  {
    absl::MutexLock lock(&mu_);
    const int64_t now = NowNanos();
    // Threads that have not stopped yet need not stop any more.
    if (const int64_t shut_at = std::exchange(shut_at_, 0); shut_at != 0) yield_nanos = now - shut_at;
    if (!released_) {
      EndSlice(now);
      slice_begin_ = now;
      open_until_ = now + absl::ToInt64Nanoseconds(slice);
    }
  }
  Report(yield_nanos);
}

void YieldPoint::Shut() {
  absl::MutexLock lock(&mu_);
  const int64_t now = NowNanos();
  // Released threads continue, and count as late.
  if (computing_ > 0 && shut_at_ == 0) shut_at_ = now;
  if (released_) return;
  EndSlice(now);
  open_until_ = 0;
}

void YieldPoint::Release() {
  absl::MutexLock lock(&mu_);
  EndSlice(NowNanos());
  released_ = true;
  open_until_ = kForEver;
}

void YieldPoint::Hold() {
  absl::MutexLock lock(&mu_);
  if (!released_) return;
  released_ = false;
  open_until_ = 0;
}

int64_t YieldPoint::EndComputing() {
  SY_CHECK_GT(computing_, 0);
  if (--computing_ > 0 || shut_at_ == 0) return -1;
  return NowNanos() - std::exchange(shut_at_, 0);
}

void YieldPoint::Report(int64_t yield_nanos) const {
  if (yield_nanos >= 0 && on_yield_) on_yield_(absl::Nanoseconds(yield_nanos));
}

void YieldPoint::WaitInside() {
  Leave();
  Enter();
}

void YieldPoint::Stand() {
  const auto open = [this] { return NowNanos() < open_until_.load(); };
  ++standing_;
  mu_.Await(absl::Condition(&open));
  --standing_;
}

void YieldPoint::WaitOutside() {
  absl::MutexLock lock(&mu_);
  Stand();
}

void YieldPoint::Enter() {
  // One lock for both: a thread that Shut does not count has not passed.
  absl::MutexLock lock(&mu_);
  Stand();
  ++computing_;
}

void YieldPoint::Leave() {
  int64_t yield_nanos = -1;
  {
    absl::MutexLock lock(&mu_);
    yield_nanos = EndComputing();
  }
  Report(yield_nanos);
}

void YieldPoint::AwaitStanding(int threads) const {
  absl::MutexLock lock(&mu_);
  const auto stand = [&] {
    mu_.AssertHeld();
    return standing_ >= threads;
  };
  mu_.Await(absl::Condition(&stand));
}

void YieldPoint::AwaitStill() const {
  absl::MutexLock lock(&mu_);
  const auto still = [this] {
    mu_.AssertHeld();
    return computing_ == 0;
  };
  mu_.Await(absl::Condition(&still));
}

absl::Duration YieldPoint::opened() const {
  absl::MutexLock lock(&mu_);
  const int64_t now = NowNanos();
  return absl::Nanoseconds(opened_ + (slice_begin_ == 0 ? 0 : std::min(now, open_until_.load()) - slice_begin_));
}

// Linux keeps a priority for each thread.
void MakeWay() { setpriority(PRIO_PROCESS, 0, kNice); }

}  // namespace switchyard
