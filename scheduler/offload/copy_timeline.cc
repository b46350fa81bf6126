#include "scheduler/offload/copy_timeline.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::offload {

CopyTimeline::CopyTimeline(const OffloadShape& shape, const CopyCost& cost)
    : shape_(shape),
      chunk_ticks_(cost.copy_ticks / cost.chunks_per_copy),
      chunks_per_copy_(cost.chunks_per_copy),
      pending_chunks_(shape.num_keys(), 0),
      arrived_at_(shape.num_keys(), 0),
      unused_prefetch_(shape.num_keys(), 0),
      holds_(shape.num_slots, kNoExpert),
      last_use_(shape.num_slots, 0),
      used_(shape.num_slots, kNoExpert) {
  SY_CHECK_EQ(cost.copy_ticks % cost.chunks_per_copy, 0);
}

void CopyTimeline::Preload(absl::Span<const ExpertKey> resident) {
  SY_CHECK_LE(resident.size(), holds_.size());
  std::copy(resident.begin(), resident.end(), holds_.begin());
}

// Gives up the expert that the slot holds or waits for.
void CopyTimeline::Forget(int slot) {
  const ExpertKey key = holds_[slot];
  if (key == kNoExpert) return;
  if (unused_prefetch_[key]) {
    if (pending_chunks_[key] < chunks_per_copy_) ++counts_.wasted;
    unused_prefetch_[key] = 0;
  }
  if (pending_chunks_[key] > 0) {
    for (std::vector<Job>* queue : {&demands_, &prefetches_}) {
      std::erase_if(*queue, [key](const Job& job) { return job.key == key; });
    }
    pending_chunks_[key] = 0;
  }
  holds_[slot] = kNoExpert;
}

void CopyTimeline::Enqueue(const LayerPlan& plan) {
  // A prefetch that this layer uses is a demand copy, ahead of those that the plan starts.
  for (const PlanStep& step : plan.steps) {
    if (step.kind != PlanStep::kUse) continue;
    ++counts_.uses;
    const auto job = std::find_if(prefetches_.begin(), prefetches_.end(),
                                  [&step](const Job& prefetch) { return prefetch.key == step.key; });
    if (job == prefetches_.end()) continue;
    demands_.push_back(*job);
    prefetches_.erase(job);
    ++counts_.late;
  }
  int32_t uses = 0;
  // A slot that is used and then overwritten within the plan: its old expert is needed until then.
  for (const PlanStep& step : plan.steps) {
    if (step.kind == PlanStep::kUse) {
      SY_CHECK_EQ(holds_[step.slot], step.key);
      last_use_[step.slot] = ++uses;
      used_[step.slot] = step.key;
      unused_prefetch_[step.key] = 0;
      continue;
    }
    if (used_[step.slot] == kNoExpert || used_[step.slot] != holds_[step.slot]) Forget(step.slot);
    holds_[step.slot] = kNoExpert;
    if (step.kind == PlanStep::kDrop) continue;
    holds_[step.slot] = step.key;
    SY_CHECK_EQ(pending_chunks_[step.key], 0);
    pending_chunks_[step.key] = chunks_per_copy_;
    const bool demand = step.kind == PlanStep::kCopy;
    unused_prefetch_[step.key] = !demand;
    if (demand) ++counts_.copies;
    (demand ? demands_ : prefetches_).push_back({step.key, step.slot, last_use_[step.slot]});
  }
  for (const PlanStep& step : plan.steps) {
    last_use_[step.slot] = 0;
    used_[step.slot] = kNoExpert;
  }
}

// Copies one chunk of the copy whose turn it is; false if none can run.
bool CopyTimeline::CopyChunk() {
  for (std::vector<Job>* queue : {&demands_, &prefetches_}) {
    for (size_t i = 0; i < queue->size(); ++i) {
      const Job& job = (*queue)[i];
      if (job.after_uses > uses_done_) continue;
      if (pending_chunks_[job.key] == chunks_per_copy_ && queue == &prefetches_) ++counts_.prefetches;
      link_time_ += chunk_ticks_;
      counts_.link_ticks += chunk_ticks_;
      if (--pending_chunks_[job.key] == 0) {
        arrived_at_[job.key] = link_time_;
        queue->erase(queue->begin() + static_cast<std::ptrdiff_t>(i));
      }
      return true;
    }
  }
  return false;
}

void CopyTimeline::CopyUntil(int64_t ticks) {
  while (link_time_ < ticks && CopyChunk()) {
  }
  link_time_ = std::max(link_time_, ticks);
}

void CopyTimeline::Save(const LayerPlan& plan) {
  saved_keys_.clear(), saved_slots_.clear();
  const auto save = [this](ExpertKey key) {
    if (key != kNoExpert) saved_keys_.push_back({key, pending_chunks_[key], arrived_at_[key], unused_prefetch_[key]});
  };
  for (const PlanStep& step : plan.steps) {
    save(step.key);
    save(holds_[step.slot]);
    saved_slots_.push_back({step.slot, holds_[step.slot]});
  }
  for (const std::vector<Job>* queue : {&demands_, &prefetches_}) {
    for (const Job& job : *queue) save(job.key);
  }
}

void CopyTimeline::Restore() {
  for (const KeyState& saved : saved_keys_) {
    pending_chunks_[saved.key] = saved.pending_chunks;
    arrived_at_[saved.key] = saved.arrived_at;
    unused_prefetch_[saved.key] = saved.unused_prefetch;
  }
  for (const SlotState& saved : saved_slots_) holds_[saved.slot] = saved.holds;
}

CopyTimeline::Outlook CopyTimeline::Try(const LayerPlan& plan, const LayerNeed& need) {
  Save(plan);
  const int64_t now = now_, link_time = link_time_;
  const TimelineCounts counts = counts_;
  std::vector<Job> demands = demands_, prefetches = prefetches_;
  Outlook outlook;
  outlook.ticks = Run(plan, need);
  outlook.link_ticks = counts_.link_ticks - counts.link_ticks;
  demands_ = std::move(demands);
  prefetches_ = std::move(prefetches);
  now_ = now;
  link_time_ = link_time;
  counts_ = counts;
  Restore();
  return outlook;
}

int64_t CopyTimeline::Run(const LayerPlan& plan, const LayerNeed& need) {
  const int64_t gate = now_;
  CopyUntil(gate);
  uses_done_ = 0;
  Enqueue(plan);
  int64_t total_rows = 0, rows_done = 0;
  for (const int32_t rows : need.rows) total_rows += rows;
  for (const PlanStep& step : plan.steps) {
    if (step.kind != PlanStep::kUse) continue;
    if (pending_chunks_[step.key] == 0 && arrived_at_[step.key] <= gate) ++counts_.hits;
    while (pending_chunks_[step.key] > 0) SY_CHECK(CopyChunk());
    now_ = std::max(now_, arrived_at_[step.key]);
    // Differences of sums, so that the shares add up to the layer's ticks exactly.
    const int64_t begin = need.compute_ticks * rows_done / total_rows;
    rows_done += need.rows[step.key % shape_.num_experts];
    now_ += need.compute_ticks * rows_done / total_rows - begin;
    CopyUntil(now_);
    ++uses_done_;
  }
  if (total_rows == 0) now_ += need.compute_ticks;
  CopyUntil(now_);
  for (Job& job : prefetches_) job.after_uses = 0;
  ++counts_.layers;
  return now_ - gate;
}

}  // namespace switchyard::offload
