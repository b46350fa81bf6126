#include "scheduler/batching/state/waiting_queue.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::batching {

void WaitingQueue::Push(Sequence* sequence) {
  by_arrival_.emplace(sequence->arrival(), sequence);
  num_tokens_ += sequence->num_tokens();
  num_suspects_ += sequence->is_suspect() ? 1 : 0;
  ++choices_[sequence->request()];
}

void WaitingQueue::Remove(Sequence* sequence) {
  SY_CHECK_EQ(by_arrival_.erase(sequence->arrival()), 1u);
  num_tokens_ -= sequence->num_tokens();
  num_suspects_ -= sequence->is_suspect() ? 1 : 0;
  const auto request = choices_.find(sequence->request());
  if (--request->second == 0) choices_.erase(request);
}

Sequence* WaitingQueue::FirstSuspect() const {
  if (num_suspects_ == 0) return nullptr;
  for (const auto& [arrival, sequence] : by_arrival_) {
    if (sequence->is_suspect()) return sequence;
  }
  return nullptr;
}

Sequence* WaitingQueue::After(uint64_t arrival) const {
  const auto next = by_arrival_.upper_bound(arrival);
  return next == by_arrival_.end() ? nullptr : next->second;
}

std::string WaitingQueue::WhyFull(int64_t tokens, const BatchingPolicy& policy) const {
  if (empty()) return "";
  if (num_requests() >= policy.max_queue) {
    return absl::StrCat(num_requests(), " requests wait, the limit is ", policy.max_queue);
  }
  if (num_tokens_ + tokens > policy.max_queued_tokens) {
    return absl::StrCat(num_tokens_, " tokens wait, ", tokens, " more would exceed the limit of ",
                        policy.max_queued_tokens);
  }
  return "";
}

}  // namespace switchyard::batching
