#include "workers/tensor/work_gate.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "scheduler/base/check.h"

namespace switchyard {
namespace {

thread_local const WorkGate* inside_of = nullptr;
thread_local int depth = 0;  // how often

constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();
// About a tenth of a core that others want: little enough, and what is left before the gate ends soon all the same.
constexpr int kNice = 10;

}  // namespace

int64_t WorkGate::NowNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void WorkGate::EndSlice(int64_t now) {
  if (slice_begin_ != 0) opened_ += std::min(now, open_until_.load()) - slice_begin_;
  slice_begin_ = 0;
}

void WorkGate::OpenFor(absl::Duration slice) {
  absl::MutexLock lock(&mu_);
  if (released_ || slice <= absl::ZeroDuration()) return;
  const int64_t now = NowNanos();
  EndSlice(now);
  slice_begin_ = now;
  shut_at_ = 0;
  open_until_ = now + absl::ToInt64Nanoseconds(slice);
}

void WorkGate::Shut() {
  absl::MutexLock lock(&mu_);
  if (released_) return;
  const int64_t now = NowNanos();
  EndSlice(now);
  open_until_ = 0;
  if (computing_ > 0 && shut_at_ == 0) shut_at_ = now;
}

void WorkGate::Release() {
  absl::MutexLock lock(&mu_);
  EndSlice(NowNanos());
  released_ = true;
  shut_at_ = 0;
  open_until_ = kForEver;
}

void WorkGate::Hold() {
  absl::MutexLock lock(&mu_);
  if (!released_) return;
  released_ = false;
  open_until_ = 0;
}

int64_t WorkGate::EndComputing() {
  if (--computing_ > 0 || shut_at_ == 0) return -1;
  return NowNanos() - std::exchange(shut_at_, 0);
}

void WorkGate::Tell(int64_t yield_nanos) const {
  if (yield_nanos >= 0 && on_yield_) on_yield_(absl::Nanoseconds(yield_nanos));
}

void WorkGate::Wait() {
  const bool inside = inside_of == this;
  int64_t yield_nanos = -1;
  if (inside) {
    absl::MutexLock lock(&mu_);
    yield_nanos = EndComputing();
  }
  Tell(yield_nanos);
  const auto open = [this] { return NowNanos() < open_until_.load(); };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&open));
  if (inside) BeginComputing();
}

void WorkGate::Enter() {
  SY_CHECK(inside_of == nullptr || inside_of == this);
  Pass();
  if (++depth > 1) return;
  inside_of = this;
  absl::MutexLock lock(&mu_);
  BeginComputing();
}

void WorkGate::Leave() {
  SY_CHECK(inside_of == this);
  if (--depth > 0) return;
  inside_of = nullptr;
  int64_t yield_nanos = -1;
  {
    absl::MutexLock lock(&mu_);
    yield_nanos = EndComputing();
  }
  Tell(yield_nanos);
}

absl::Duration WorkGate::opened() const {
  absl::MutexLock lock(&mu_);
  const int64_t now = NowNanos();
  return absl::Nanoseconds(opened_ + (slice_begin_ == 0 ? 0 : std::min(now, open_until_.load()) - slice_begin_));
}

// Linux keeps a priority for each thread.
void MakeWay() { setpriority(PRIO_PROCESS, 0, kNice); }

}  // namespace switchyard
