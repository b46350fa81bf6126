#include "workers/tensor/yield_point.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "scheduler/base/check.h"

namespace switchyard {
namespace {

thread_local YieldPoint* inside_of = nullptr;
thread_local int depth = 0;  // how often the thread has entered it

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
  if (--computing_ > 0 || shut_at_ == 0) return -1;
  return NowNanos() - std::exchange(shut_at_, 0);
}

void YieldPoint::Report(int64_t yield_nanos) const {
  if (yield_nanos >= 0 && on_yield_) on_yield_(absl::Nanoseconds(yield_nanos));
}

void YieldPoint::Wait() {
  const bool inside = inside_of == this;
  int64_t yield_nanos = -1;
  if (inside) {
    absl::MutexLock lock(&mu_);
    yield_nanos = EndComputing();
  }
  Report(yield_nanos);
  absl::MutexLock lock(&mu_);
  Stand();
  if (inside) ++computing_;
}

void YieldPoint::Stand() {
  const auto open = [this] { return NowNanos() < open_until_.load(); };
  ++standing_;
  mu_.Await(absl::Condition(&open));
  --standing_;
}

void YieldPoint::Enter() {
  SY_CHECK(inside_of == nullptr || inside_of == this);
  if (++depth > 1) return Pass();
  inside_of = this;
  // One lock for both: a thread that Shut does not count has not passed.
  absl::MutexLock lock(&mu_);
  Stand();
  ++computing_;
}

void YieldPoint::Leave() {
  SY_CHECK(inside_of == this);
  if (--depth > 0) return;
  inside_of = nullptr;
  int64_t yield_nanos = -1;
  {
    absl::MutexLock lock(&mu_);
    yield_nanos = EndComputing();
  }
  Report(yield_nanos);
}

YieldPoint* YieldPoint::Own() { return inside_of; }

void YieldPoint::PassOwn() {
  if (inside_of != nullptr) inside_of->Pass();
}

NonYieldingScope::NonYieldingScope() : gate_(inside_of), depth_(depth) {
  for (int i = 0; i < depth_; ++i) gate_->Leave();
}

NonYieldingScope::~NonYieldingScope() {
  for (int i = 0; i < depth_; ++i) gate_->Enter();
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

void CopyBehindGate(void* to, const void* from, int64_t bytes) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  for (int64_t begin = 0; begin < bytes; begin += kPiece) {
    YieldPoint::PassOwn();
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<size_t>(std::min(kPiece, bytes - begin)));
  }
}

// Linux keeps a priority for each thread.
void MakeWay() { setpriority(PRIO_PROCESS, 0, kNice); }

}  // namespace switchyard
