#include "workers/moe/placement/replicated_experts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/placement.h"
#include "workers/moe/layer/moe_context.h"

namespace switchyard::moe {

ReplicatedExperts::ReplicatedExperts(ReplicatedExpertsOptions options, std::unique_ptr<ExpertStore> store,
                                     CheckingCopier* copier)
    : options_(std::move(options)),
      store_(std::move(store)),
      copier_(copier),
      places_(static_cast<size_t>(options_.num_layers) * static_cast<size_t>(options_.num_experts)) {
  for (int slot = options_.num_slots; slot-- > 0;) free_.push_back(slot);
}

ReplicatedExperts::~ReplicatedExperts() = default;

absl::StatusOr<std::unique_ptr<ReplicatedExperts>> ReplicatedExperts::Create(ReplicatedExpertsOptions options,
                                                                             std::unique_ptr<ExpertCopier> copier) {
  SY_CHECK(options.num_layers >= 1 && options.num_experts >= 1 && options.source != nullptr &&
           options.checksum != nullptr && options.chunk_bytes % 64 == 0);
  auto checking = std::make_unique<CheckingCopier>(std::move(copier), options.expert.bytes);
  CheckingCopier* const borrowed = checking.get();
  ExpertStoreOptions store_options;
  store_options.expert = options.expert;
  store_options.num_slots = options.num_slots;
  store_options.device = options.device;
  store_options.chunk_bytes = options.chunk_bytes;
  store_options.bytes_per_second = options.bytes_per_second;
  store_options.source = [source = options.source](const ExpertId& id) { return source(id.layer, id.expert); };
  ASSIGN_OR_RETURN(std::unique_ptr<ExpertStore> store, ExpertStore::Create(store_options, std::move(checking)));
  return std::unique_ptr<ReplicatedExperts>(new ReplicatedExperts(std::move(options), std::move(store), borrowed));
}

absl::Status ReplicatedExperts::Fill(const std::vector<std::vector<int32_t>>& experts, absl::Time deadline,
                                     Progress progress) {
  SY_CHECK_EQ(static_cast<int>(experts.size()), options_.num_layers);
  std::vector<uint8_t> wanted(places_.size());
  for (size_t layer = 0; layer < experts.size(); ++layer) {
    for (const int32_t expert : experts[layer]) {
      if (expert != placement::kEmptySlot)
        wanted[layer * static_cast<size_t>(options_.num_experts) + static_cast<size_t>(expert)] = 1;
    }
  }
  arriving_.clear();
  departed_.clear();
  for (Place& place : places_) place.holders = place.holders == 0 ? 0 : kTable;
  const auto expert_of = [&](size_t place) {
    const auto width = static_cast<size_t>(options_.num_experts);
    return Expert{static_cast<int32_t>(place / width), static_cast<int32_t>(place % width)};
  };
  for (size_t place = 0; place < places_.size(); ++place) {
    if (wanted[place] == 0 && places_[place].holders != 0) RETURN_IF_ERROR(Release(expert_of(place), kTable));
  }
  const int64_t begun_at = store_->counters().copied_bytes;
  const auto num_begun = [this] {
    return counters_.copies[static_cast<size_t>(CopyReason::kFill)] +
           counters_.copies[static_cast<size_t>(CopyReason::kRepair)];
  };
  const int64_t before = num_begun();
  RETURN_IF_ERROR(Repair());
  for (size_t place = 0; place < places_.size(); ++place) {
    if (wanted[place] != 0) RETURN_IF_ERROR(Hold(expert_of(place), kTable, CopyReason::kFill));
  }
  const int64_t total = (num_begun() - before) * options_.expert.bytes;
  RETURN_IF_ERROR(store_->AwaitCopies(begun_at, total, deadline, progress));
  for (size_t place = 0; place < places_.size(); ++place) {
    if (wanted[place] == 0 || store_->StateOf(IdOf(expert_of(place))) == SlotState::kFilled) continue;
    return copier_->FailureOf(IdOf(expert_of(place)));
  }
  return absl::OkStatus();
}

absl::Status ReplicatedExperts::StartCopy(const Expert& expert, int slot, CopyReason reason) {
  ++counters_.copies[static_cast<size_t>(reason)];
  const ExpertId id = IdOf(expert);
  std::optional<uint64_t> checksum;
  if (reason == CopyReason::kMigration || (PlaceOf(expert).holders & kMigration) != 0 || copier_->WasDamaged(id)) {
    checksum = options_.checksum(expert.layer, expert.expert);
  }
  const int64_t attempt = copier_->BeginCopy(id, checksum);
  if (reason == CopyReason::kPrefetch || reason == CopyReason::kMigration) {
    const absl::Status status = store_->StartCopy(id, slot, CopyPriority::kPrefetch, attempt);
    // Copies into all other slots are under way, and this one is wanted as much as they are.
    if (!absl::IsFailedPrecondition(status)) return status;
  }
  return store_->StartCopy(id, slot, CopyPriority::kDemand, attempt);
}

absl::Status ReplicatedExperts::Repair() {
  for (const ExpertId& id : copier_->Failed()) {
    if (store_->StateOf(id) != SlotState::kFilled) continue;  // a copy failed: nothing is in its slot
    LogWarn(copier_->FailureOf(id).message(), ": found in its slot, where it may have been computed with; copied anew");
    const Expert expert = {id.layer, id.expert};
    RETURN_IF_ERROR(store_->Evict(PlaceOf(expert).slot));
    RETURN_IF_ERROR(StartCopy(expert, PlaceOf(expert).slot, CopyReason::kRepair));
  }
  return absl::OkStatus();
}

absl::Status ReplicatedExperts::Hold(const Expert& expert, Holder holder, CopyReason reason) {
  Place& place = PlaceOf(expert);
  if (place.holders == 0) {
    if (free_.empty()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("placed experts: no slot of ", options_.num_slots, " is free for ", IdOf(expert).ToString()));
    }
    place.slot = free_.back();
    RETURN_IF_ERROR(StartCopy(expert, place.slot, reason));
    free_.pop_back();
  } else if (store_->StateOf(IdOf(expert)) == SlotState::kFree) {  // its copy failed
    RETURN_IF_ERROR(StartCopy(expert, place.slot, reason));
  } else if (reason == CopyReason::kMigration) {  // a decision made the present copy, unchecked
    store_->Recheck(IdOf(expert), copier_->BeginLook(IdOf(expert), options_.checksum(expert.layer, expert.expert)));
  }
  place.holders |= holder;
  return absl::OkStatus();
}

absl::Status ReplicatedExperts::Release(const Expert& expert, Holder holder) {
  Place& place = PlaceOf(expert);
  if ((place.holders & holder) == 0) return absl::OkStatus();
  if (place.holders == holder) {
    RETURN_IF_ERROR(store_->Evict(place.slot));
    copier_->Forget(IdOf(expert));
    free_.push_back(place.slot);
    place.slot = -1;
  }
  place.holders &= static_cast<uint8_t>(~holder);
  return absl::OkStatus();
}

absl::Status ReplicatedExperts::Replace(int layer, int32_t before, int32_t now, CopyReason reason) {
  if (before != placement::kEmptySlot) RETURN_IF_ERROR(Release({layer, before}, kTable));
  return now == placement::kEmptySlot ? absl::OkStatus() : Hold({layer, now}, kTable, reason);
}

void ReplicatedExperts::RaisePriority(int layer, int32_t expert) { store_->RaisePriority(IdOf({layer, expert})); }

absl::Status ReplicatedExperts::Check(absl::Span<const int32_t>) const { return absl::OkStatus(); }

absl::Status ReplicatedExperts::RunLayer(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                                         Compute compute) {
  const size_t slots = rows.experts.size();
  SY_CHECK_EQ(rows.offsets.size(), slots + 1);
  RETURN_IF_ERROR(Repair());
  ids_.clear();
  int64_t late = 0;
  for (size_t slot = 0; slot < slots; ++slot) {
    if (rows.offsets[slot + 1] == rows.offsets[slot]) continue;
    if (rows.experts[slot] == placement::kEmptySlot) {
      return absl::InternalError(absl::StrCat("placed experts: ", rows.offsets[slot + 1] - rows.offsets[slot],
                                              " rows of MoE layer ", layer.index, " came for slot ", slot,
                                              ", which is empty"));
    }
    const Expert expert = {layer.index, rows.experts[slot]};
    ids_.push_back(IdOf(expert));
    const SlotState state = store_->StateOf(ids_.back());
    // A copy that failed before anybody waited for it is tried once more.
    if (state == SlotState::kFree && (PlaceOf(expert).holders & kTable) != 0) {
      RETURN_IF_ERROR(Hold(expert, kTable, CopyReason::kDemand));
    }
    late += state == SlotState::kFilled ? 0 : 1;
  }
  if (ids_.empty()) return absl::OkStatus();
  counters_.late += late;
  const absl::Time begin = absl::Now();
  absl::StatusOr<ExpertLease> lease = store_->Acquire(ids_, context.deadline);
  if (late > 0) counters_.wait_seconds += absl::ToDoubleSeconds(absl::Now() - begin);
  RETURN_IF_ERROR(lease.status());
  gate_up_.assign(slots, nullptr);
  down_.assign(slots, nullptr);
  int64_t next = 0;
  for (size_t slot = 0; slot < slots; ++slot) {
    if (rows.offsets[slot + 1] == rows.offsets[slot]) continue;
    gate_up_[slot] = &lease->gate_up(next);
    down_[slot] = &lease->down(next++);
  }
  RETURN_IF_ERROR(compute(gate_up_, down_));
  return lease->ReleaseBehind(context.stream);
}

absl::Status ReplicatedExperts::Prepare(absl::Span<const Expert> arrivals) {
  if (!arriving_.empty() || !departed_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("placed experts: a migration has ", arriving_.size(),
                                                      " experts that arrive and ", departed_.size(),
                                                      " that wait for their release"));
  }
  for (const Expert& expert : arrivals) {
    if (const absl::Status status = Hold(expert, kMigration, CopyReason::kMigration); !status.ok()) {
      RETURN_IF_ERROR(Drop());
      return status;
    }
    arriving_.push_back(expert);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ReplicatedExperts::Ready() {
  RETURN_IF_ERROR(Repair());
  bool ready = true;
  for (const Expert& expert : arriving_) {
    const ExpertId id = IdOf(expert);
    RETURN_IF_ERROR(copier_->FailureOf(id));
    ready = ready && store_->StateOf(id) == SlotState::kFilled && !store_->rechecking(id);
  }
  return ready;
}

void ReplicatedExperts::Commit(absl::Span<const Expert> departures) {
  for (const Expert& expert : arriving_) {
    Place& place = PlaceOf(expert);
    SY_CHECK(place.holders != 0);
    place.holders = kTable;
  }
  arriving_.clear();
  for (const Expert& expert : departures) {
    Place& place = PlaceOf(expert);
    SY_CHECK(place.holders == kTable);
    place.holders = kDeparted;
    departed_.push_back(expert);
  }
}

absl::Status ReplicatedExperts::Drop() {
  absl::Status status;
  for (const Expert& expert : std::exchange(arriving_, {})) status.Update(Release(expert, kMigration));
  return status;
}

absl::Status ReplicatedExperts::Release() {
  absl::Status status;
  for (const Expert& expert : std::exchange(departed_, {})) status.Update(Release(expert, kDeparted));
  return status;
}

ExpertHostCounters ReplicatedExperts::counters() const {
  ExpertHostCounters counters = counters_;
  const ExpertStoreCounters store = store_->counters();
  counters.copied_bytes = store.copied_bytes;
  counters.failed = store.failed;
  counters.path = store.path;
  return counters;
}

}  // namespace switchyard::moe
