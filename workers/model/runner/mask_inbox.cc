#include "workers/model/runner/mask_inbox.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "scheduler/base/await.h"

namespace switchyard::model {

void MaskInbox::Put(int64_t epoch, int64_t step, batching::RankMasks masks) {
  absl::MutexLock lock(&mu_);
  if (epoch <= aborted_) return;
  masks_[{epoch, step}] = std::move(masks);
  if (masks_.size() > kMostSteps) masks_.erase(masks_.begin());
}

absl::StatusOr<batching::RankMasks> MaskInbox::Await(int64_t epoch, int64_t step, absl::Time deadline) {
  const Key key(epoch, step);
  absl::MutexLock lock(&mu_);
  const auto wanted = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return masks_.contains(key) || aborted_ >= epoch; };
  AwaitUntil(&mu_, absl::Condition(&wanted), deadline);
  masks_.erase(masks_.begin(), masks_.lower_bound(key));
  if (aborted_ >= epoch) return absl::AbortedError(reason_);
  const auto it = masks_.find(key);
  if (it == masks_.end())
    return absl::DeadlineExceededError(absl::StrCat("the server sent no masks of step ", step, " in time"));
  batching::RankMasks masks = std::move(it->second);
  masks_.erase(it);
  return masks;
}

void MaskInbox::Abort(int64_t epoch, const std::string& reason) {
  absl::MutexLock lock(&mu_);
  if (epoch <= aborted_) return;
  aborted_ = epoch;
  reason_ = reason;
  masks_.erase(masks_.begin(), masks_.upper_bound({epoch, std::numeric_limits<int64_t>::max()}));
}

void MaskInbox::ForgetEpochs() {
  absl::MutexLock lock(&mu_);
  masks_.clear();
  aborted_ = 0;
  reason_.clear();
}

}  // namespace switchyard::model
