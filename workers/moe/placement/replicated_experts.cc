#include "workers/moe/placement/replicated_experts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/placement.h"
#include "workers/moe/layer/moe_context.h"

namespace switchyard::moe {

ReplicatedExperts::ReplicatedExperts(ReplicatedExpertsOptions options, std::unique_ptr<ExpertStore> store)
    : options_(std::move(options)),
      store_(std::move(store)),
      slot_of_(static_cast<size_t>(options_.num_layers) * static_cast<size_t>(options_.num_experts), -1) {
  for (int slot = options_.num_slots; slot-- > 0;) free_.push_back(slot);
}

ReplicatedExperts::~ReplicatedExperts() = default;

absl::StatusOr<std::unique_ptr<ReplicatedExperts>> ReplicatedExperts::Create(ReplicatedExpertsOptions options,
                                                                             std::unique_ptr<ExpertCopier> copier) {
  SY_CHECK(options.num_layers >= 1 && options.num_experts >= 1 && options.source != nullptr &&
           options.chunk_bytes % 64 == 0);
  ExpertStoreOptions store_options;
  store_options.expert = options.expert;
  store_options.num_slots = options.num_slots;
  store_options.device = options.device;
  store_options.chunk_bytes = options.chunk_bytes;
  store_options.bytes_per_second = options.bytes_per_second;
  store_options.source = [source = options.source](const ExpertId& id) { return source(id.layer, id.expert); };
  ASSIGN_OR_RETURN(std::unique_ptr<ExpertStore> store, ExpertStore::Create(store_options, std::move(copier)));
  return std::unique_ptr<ReplicatedExperts>(new ReplicatedExperts(std::move(options), std::move(store)));
}

absl::Status ReplicatedExperts::Fill(const std::vector<std::vector<int32_t>>& experts, absl::Time deadline,
                                     Progress progress) {
  SY_CHECK_EQ(static_cast<int>(experts.size()), options_.num_layers);
  RETURN_IF_ERROR(EndStanding());
  std::vector<ExpertId> wanted;
  std::vector<uint8_t> is_wanted(slot_of_.size());
  for (int layer = 0; layer < options_.num_layers; ++layer) {
    for (const int32_t expert : experts[static_cast<size_t>(layer)]) {
      if (expert == placement::kEmptySlot) continue;
      wanted.push_back({layer, expert});
      is_wanted[static_cast<size_t>(&SlotOf(wanted.back()) - slot_of_.data())] = 1;
    }
  }
  for (size_t at = 0; at < slot_of_.size(); ++at) {
    const auto width = static_cast<size_t>(options_.num_experts);
    const ExpertId id = {static_cast<int32_t>(at / width), static_cast<int32_t>(at % width)};
    if (is_wanted[at] == 0) RETURN_IF_ERROR(Release(id));
  }
  const int64_t begun_at = store_->counters().copied_bytes;
  const int64_t& fills = counters_.copies[static_cast<size_t>(CopyReason::kFill)];
  int64_t to_copy = 0;
  for (const ExpertId& id : wanted) {
    const int64_t before = fills;
    RETURN_IF_ERROR(Hold(id, CopyReason::kFill));
    if (fills > before) to_copy += store_->expert_bytes(id.layer);
  }
  RETURN_IF_ERROR(store_->AwaitCopies(begun_at, to_copy, deadline, progress));
  for (const ExpertId& id : wanted) RETURN_IF_ERROR(store_->FailureOf(id));
  return absl::OkStatus();
}

absl::Status ReplicatedExperts::EndStanding() {
  for (StandingLayer& layer : standing_) RETURN_IF_ERROR(layer.lease.ReleaseBehind(&*standing_stream_));
  standing_.clear();
  return absl::OkStatus();
}

absl::Status ReplicatedExperts::Stand(const Stream& stream, const std::vector<std::vector<int32_t>>& experts) {
  SY_CHECK_EQ(static_cast<int>(experts.size()), options_.num_layers);
  RETURN_IF_ERROR(EndStanding());
  std::vector<StandingLayer> made(experts.size());
  for (size_t layer = 0; layer < experts.size(); ++layer) {
    ids_.clear();
    for (const int32_t expert : experts[layer]) ids_.push_back({static_cast<int32_t>(layer), expert});
    // (Fill waited for them.)
    ASSIGN_OR_RETURN(made[layer].lease, store_->Acquire(ids_, absl::InfinitePast()));
    std::vector<const ops::Weight*> gate_up, down;
    for (int64_t i = 0; i < made[layer].lease.size(); ++i) {
      gate_up.push_back(&made[layer].lease.gate_up(i));
      down.push_back(&made[layer].lease.down(i));
    }
    ASSIGN_OR_RETURN(made[layer].experts.gate_up, ops::WeightTable::Make(stream, std::move(gate_up)));
    ASSIGN_OR_RETURN(made[layer].experts.down, ops::WeightTable::Make(stream, std::move(down)));
  }
  standing_stream_ = stream;
  standing_ = std::move(made);
  return absl::OkStatus();
}

absl::Status ReplicatedExperts::StartCopy(const ExpertId& id, int slot, CopyReason reason) {
  ++counters_.copies[static_cast<size_t>(reason)];
  if (reason == CopyReason::kPrefetch) {
    const absl::Status status = store_->StartCopy(id, slot, CopyPriority::kPrefetch);
    // Copies into all other slots are under way, and this one is wanted as much as they are.
    if (!absl::IsFailedPrecondition(status)) return status;
  }
  return store_->StartCopy(id, slot, CopyPriority::kDemand);
}

absl::Status ReplicatedExperts::Hold(const ExpertId& id, CopyReason reason) {
  int& slot = SlotOf(id);
  if (slot >= 0) {
    // Free: its copy failed.
    return store_->StateOf(id) == SlotState::kFree ? StartCopy(id, slot, reason) : absl::OkStatus();
  }
  if (free_.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("placed experts: no slot of ", options_.num_slots, " is free for ", id.ToString()));
  }
  RETURN_IF_ERROR(StartCopy(id, free_.back(), reason));
  slot = free_.back();
  free_.pop_back();
  return absl::OkStatus();
}

absl::Status ReplicatedExperts::Release(const ExpertId& id) {
  int& slot = SlotOf(id);
  if (slot < 0) return absl::OkStatus();
  RETURN_IF_ERROR(store_->Evict(slot));
  free_.push_back(slot);
  slot = -1;
  return absl::OkStatus();
}

absl::Status ReplicatedExperts::Replace(int layer, int32_t before, int32_t now, CopyReason reason) {
  if (before != placement::kEmptySlot) RETURN_IF_ERROR(Release({layer, before}));
  return now == placement::kEmptySlot ? absl::OkStatus() : Hold({layer, now}, reason);
}

void ReplicatedExperts::RaisePriority(int layer, int32_t expert) { store_->RaisePriority({layer, expert}); }

absl::Status ReplicatedExperts::Check(absl::Span<const int32_t>) const { return absl::OkStatus(); }

absl::Status ReplicatedExperts::RunLayer(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                                         Compute compute) {
  const size_t slots = rows.experts.size();
  SY_CHECK_EQ(rows.offsets.size(), slots + 1);
  here_.clear();
  late_.clear();
  for (size_t slot = 0; slot < slots; ++slot) {
    if (rows.offsets[slot + 1] == rows.offsets[slot]) continue;
    if (rows.experts[slot] == placement::kEmptySlot) {
      return absl::InternalError(absl::StrCat("placed experts: ", rows.offsets[slot + 1] - rows.offsets[slot],
                                              " rows of MoE layer ", layer.index, " came for slot ", slot,
                                              ", which is empty"));
    }
    const SlotState state = store_->StateOf({layer.index, rows.experts[slot]});
    (state == SlotState::kFilled ? here_ : late_).push_back(slot);
  }
  if (!here_.empty()) RETURN_IF_ERROR(RunWave(context, layer, rows, here_, compute, nullptr));
  // A copy that failed before anybody waited for it is tried once more.
  for (const size_t slot : late_) {
    const ExpertId id = {layer.index, rows.experts[slot]};
    if (SlotOf(id) >= 0) RETURN_IF_ERROR(Hold(id, CopyReason::kDemand));
  }
  counters_.late += static_cast<int64_t>(late_.size());
  return late_.empty() ? absl::OkStatus() : RunWave(context, layer, rows, late_, compute, &counters_.wait_seconds);
}

absl::Status ReplicatedExperts::RunWave(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                                        const std::vector<size_t>& slots, Compute compute, double* waited) {
  ids_.clear();
  for (const size_t slot : slots) ids_.push_back({layer.index, rows.experts[slot]});
  const absl::Time begin = MonotonicNow();
  absl::StatusOr<ExpertLease> lease = store_->Acquire(ids_, context.deadline);
  if (waited != nullptr) *waited += absl::ToDoubleSeconds(MonotonicNow() - begin);
  RETURN_IF_ERROR(lease.status());
  gate_up_.assign(rows.experts.size(), nullptr);
  down_.assign(rows.experts.size(), nullptr);
  for (size_t i = 0; i < slots.size(); ++i) {
    gate_up_[slots[i]] = &lease->gate_up(static_cast<int64_t>(i));
    down_[slots[i]] = &lease->down(static_cast<int64_t>(i));
  }
  RETURN_IF_ERROR(compute(gate_up_, down_));
  return lease->ReleaseBehind(context.stream);
}

ReplicatedExpertsCounters ReplicatedExperts::counters() const {
  ReplicatedExpertsCounters counters = counters_;
  const ExpertStoreCounters store = store_->counters();
  counters.copied_bytes = store.copied_bytes;
  counters.failed = store.failed;
  counters.path = store.path;
  return counters;
}

}  // namespace switchyard::moe
