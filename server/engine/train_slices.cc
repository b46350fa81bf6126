#include "server/engine/train_slices.h"

#include <algorithm>

namespace switchyard::server {

absl::Duration TrainSlices::given(absl::Time now) const {
  absl::MutexLock lock(&mu_);
  return until_ == absl::InfinitePast() ? given_ : given_ + std::min(now, until_) - begin_;
}

int64_t TrainSlices::num_slices() const {
  absl::MutexLock lock(&mu_);
  return num_slices_;
}

absl::Duration TrainSlices::Next(absl::Time now) {
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

void TrainSlices::End(absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (until_ != absl::InfinitePast()) given_ += std::min(now, until_) - begin_;
  until_ = absl::InfinitePast();
}

void TrainSlices::StepDone(absl::Time sent, absl::Time now) {
  const absl::Duration took = std::min(now - std::max(sent, counted_until_), kLongestStep);
  counted_until_ = now;
  if (wanted_ && share_ > 0) owed_ += took * share_ / (1 - share_);
}

absl::Time TrainSlices::PayOwed(absl::Time now) {
  if (now < owed_until_) return owed_until_;
  owed_ -= kOwedSlice;
  return owed_until_ = now + kOwedSlice;
}

}  // namespace switchyard::server
