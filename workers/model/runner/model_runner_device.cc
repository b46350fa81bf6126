// The runner's steps that are enqueued on a device, then collected.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/communicator.h"
#include "workers/model/runner/model_runner.h"

namespace switchyard::model {

// A device does not sample from fp64 logits, nor from so many: the same on all ranks.
bool ModelRunner::SamplesOnDevice() const {
  return device_steps_ != nullptr && model_->dtype() != DType::kF64 &&
         model_->config().vocab_size <= ops::kMaxPlainVocab;
}

// A sequence that runs has a block of its own, at least.
absl::Status ModelRunner::CaptureGraphs(absl::Duration limit, absl::FunctionRef<bool(int64_t, int64_t)> progress) {
  SY_CHECK(comm_ != nullptr);
  if (!records_steps_ || !SamplesOnDevice()) return absl::OkStatus();
  absl::Time deadline = MonotonicNow() + limit;
  ASSIGN_OR_RETURN(const int64_t blocks, LeastOfRanks(comm_, num_blocks(), deadline));
  const std::vector<int64_t> buckets = device_steps_->Buckets(blocks);
  const auto report = [&](size_t done) {
    const bool goes_on = progress(static_cast<int64_t>(done), static_cast<int64_t>(buckets.size()));
    deadline = MonotonicNow() + limit;
    if (goes_on) return absl::OkStatus();
    return absl::CancelledError(absl::StrCat("capturing was stopped after ", done, " of ", buckets.size(), " graphs"));
  };
  RETURN_IF_ERROR(report(0));
  if (guides_.balancer != nullptr) RETURN_IF_ERROR(guides_.balancer->BeginStep({.decides = false}));
  for (size_t i = 0; i < buckets.size(); ++i) {
    moe::MoeStats stats;
    ASSIGN_OR_RETURN(const bool fits, device_steps_->Capture(ContextOf(deadline, &stats), buckets[i]));
    if (!fits) break;
    RETURN_IF_ERROR(report(i + 1));
  }
  return absl::OkStatus();
}

bool ModelRunner::IsPlain(const batching::RankPlan& plan) const {
  return SamplesOnDevice() && std::all_of(plan.items.begin(), plan.items.end(), [&](const batching::StepItem& item) {
           const Slot& slot = slots_.slot(item.slot);
           return slot.broken || batching::IsPlainSampling(slot.sampling, slot.num_output());
         });
}

// A graph has room for so many rows, one a sequence.
absl::Status ModelRunner::ValidateDecodes(const batching::StepPlan& plan, const batching::RankPlan& rank_plan) const {
  if (plan.exchange_version != batching::kDecodeExchange) return absl::OkStatus();
  for (const batching::StepItem& item : rank_plan.items) {
    if (item.sample && item.num_query == 1) continue;
    return absl::InternalError(absl::StrCat("plan: slot ", item.slot, ": ", item.num_query, " queries",
                                            item.sample ? "" : " and no sample", " in a step of plain decodes"));
  }
  const auto num_items = static_cast<int64_t>(rank_plan.items.size());
  if (num_items <= plan.most_rows()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("plan: ", num_items, " decodes, of any rank at most ", plan.most_rows()));
}

// With several ranks the plan decides, so that all do the same.  A step whose layers decide is not recorded.
int64_t ModelRunner::MostDecodes(const batching::StepPlan& plan, const batching::RankPlan& rank_plan) const {
  if (plan.decides && guides_.balancer != nullptr) return 0;
  if (comm_->world() > 1) return plan.exchange_version == batching::kDecodeExchange ? plan.most_rows() : 0;
  const bool decodes = std::all_of(rank_plan.items.begin(), rank_plan.items.end(),
                                   [](const batching::StepItem& item) { return item.sample && item.num_query == 1; });
  return decodes ? static_cast<int64_t>(uses_.size()) : 0;
}

absl::Status ModelRunner::Enqueue(const batching::StepPlan& plan, const batching::RankPlan& rank_plan, Started* step) {
  plain_rows_.clear();
  for (const LogitUse& use : uses_) {
    const batching::SlotId id = rank_plan.items[use.item].slot;
    const Slot& slot = slots_.slot(id);
    plain_rows_.push_back({.params = &slot.sampling, .index = slot.num_output(), .slot = id});
    step->pending.push_back({.item = use.item,
                             .slot = id,
                             .generation = slot.generation,
                             .position = static_cast<int64_t>(slot.tokens.size())});
  }
  step->result.rows = batch_.num_rows();  // the launch pads the batch
  moe::MoeStats stats;
  RETURN_IF_ERROR(BeginGuides(plan));
  RETURN_IF_ERROR(
      device_steps_->Launch(ContextOf(step->deadline, &stats), &batch_, plain_rows_, MostDecodes(plan, rank_plan)));
  TakeStats(&stats, &step->result);
  step->under_way = true;
  for (size_t i = 0; i < rank_plan.items.size(); ++i) {
    const batching::StepItem& item = rank_plan.items[i];
    const bool broken = slots_.slot(item.slot).broken;  // not run: BuildBatch
    if (broken) step->result.items[i].status = batching::ItemStatus::kNonFinite;
    slots_.Advance(item);
    if (item.sample && !broken) slots_.AppendPending(item.slot);
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::CollectOldest() {
  const auto oldest =
      std::find_if(started_.begin(), started_.end(), [](const Started& step) { return step.under_way; });
  SY_CHECK(oldest != started_.end());
  ASSIGN_OR_RETURN(CollectedStep collected, device_steps_->Collect(oldest->deadline));
  RETURN_IF_ERROR(comm_->status());  // a collective in it may have been cut short
  oldest->under_way = false;
  oldest->result.expert_counts = OfMoeLayers(collected.expert_counts);
  if (!collected.decode_counts.empty()) oldest->result.decode_expert_counts = OfMoeLayers(collected.decode_counts);
  for (size_t i = 0; i < oldest->pending.size(); ++i) {
    const Pending& pending = oldest->pending[i];
    const int32_t token = collected.tokens[i];
    batching::ItemResult& item = oldest->result.items[pending.item];
    const Slot& slot = slots_.slot(pending.slot);
    const bool broken = token < 0 || (slot.generation == pending.generation && slot.broken);
    slots_.Resolve(pending.slot, pending.generation, pending.position, std::max(token, 0));
    if (!broken) {
      item.tokens.push_back(token);
      continue;
    }
    item.status = batching::ItemStatus::kNonFinite;
    if (slot.generation == pending.generation) slots_.Break(pending.slot);
  }
  oldest->result.timings.total_seconds = absl::ToDoubleSeconds(MonotonicNow() - oldest->begin);
  return absl::OkStatus();
}

absl::StatusOr<bool> ModelRunner::IsDone() {
  const Started& oldest = started_.front();
  if (!oldest.under_way || MonotonicNow() >= oldest.deadline) return true;
  return device_steps_->OldestIsDone();
}

absl::StatusOr<batching::RankResult> ModelRunner::Finish() {
  SY_CHECK_GT(num_started(), 0);
  if (started_.front().under_way) RETURN_IF_ERROR(CollectOldest());
  batching::RankResult result = std::move(started_.front().result);
  started_.pop_front();
  if (device_steps_ != nullptr && comm_->world() == 1) {
    const int64_t num_experts = std::max<int64_t>(model_->config().num_experts, 1);
    const auto size = static_cast<int64_t>(result.expert_counts.size());
    result.layer_rows.assign(static_cast<size_t>(size / num_experts), 0);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t rows = result.expert_counts[static_cast<size_t>(i)];
      result.layer_rows[static_cast<size_t>(i / num_experts)] += rows;
      result.expert_rows += rows;
    }
  }
  return result;
}

}  // namespace switchyard::model
