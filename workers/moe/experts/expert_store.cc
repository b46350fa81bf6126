#include "workers/moe/experts/expert_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/await.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::moe {
namespace {

int64_t SlotBytes(const ExpertStoreOptions& options) {
  return (options.expert.bytes() + options.slot_alignment - 1) / options.slot_alignment * options.slot_alignment;
}

char* AlignedUp(void* memory, int64_t alignment) {
  const auto unit = static_cast<uintptr_t>(alignment);
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + unit - 1) / unit * unit);
}

}  // namespace

ExpertLease& ExpertLease::operator=(ExpertLease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  store_ = std::exchange(other.store_, nullptr);
  slots_ = std::exchange(other.slots_, {});
  return *this;
}

const ops::Weight& ExpertLease::gate_up(int64_t i) const { return store_->gate_up_[static_cast<size_t>(slot(i))]; }
const ops::Weight& ExpertLease::down(int64_t i) const { return store_->down_[static_cast<size_t>(slot(i))]; }

void ExpertLease::Release() {
  if (store_ != nullptr) std::exchange(store_, nullptr)->Unpin(std::exchange(slots_, {}), nullptr);
}

absl::Status ExpertLease::ReleaseBehind(const Stream* stream) {
  if (store_ == nullptr) return absl::OkStatus();
  std::shared_ptr<const DeviceEvent> passed;
  if (stream != nullptr && stream->queue() != nullptr) {
    ASSIGN_OR_RETURN(passed, stream->queue()->Record());
  }
  std::exchange(store_, nullptr)->Unpin(std::exchange(slots_, {}), passed);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ExpertStore>> ExpertStore::Create(ExpertStoreOptions options,
                                                                 std::unique_ptr<ExpertCopier> copier) {
  if (options.num_slots < 1 || options.chunk_bytes < 1 || options.bytes_per_second < 0) {
    return absl::InvalidArgumentError(absl::StrCat("expert store: ", options.num_slots, " slots, chunks of ",
                                                   options.chunk_bytes, " bytes, ", options.bytes_per_second,
                                                   " bytes/s: wants at least 1, 1 and 0"));
  }
  SY_CHECK(copier != nullptr && options.slot_alignment >= 1);
  const int64_t all = options.num_slots * SlotBytes(options);
  const int64_t spare = options.slot_alignment > kDeviceAlignment ? options.slot_alignment : 0;
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(all + spare, options.device));
  return std::unique_ptr<ExpertStore>(new ExpertStore(std::move(options), std::move(copier), std::move(buffer)));
}

ExpertStore::ExpertStore(ExpertStoreOptions options, std::unique_ptr<ExpertCopier> copier, Buffer buffer)
    : options_(std::move(options)),
      copier_(std::move(copier)),
      slot_bytes_(SlotBytes(options_)),
      buffer_(std::move(buffer)),
      memory_(AlignedUp(buffer_.data(), options_.slot_alignment > kDeviceAlignment ? options_.slot_alignment : 1)),
      gate_up_(static_cast<size_t>(options_.num_slots)),
      down_(static_cast<size_t>(options_.num_slots)),
      slots_(static_cast<size_t>(options_.num_slots)),
      under_way_(static_cast<size_t>(options_.num_slots)),
      last_use_(static_cast<size_t>(options_.num_slots)) {
  thread_ = std::thread([this] { RunCopies(); });
}

ExpertStore::~ExpertStore() {
  Abort(absl::CancelledError("the expert store is gone"));
  thread_.join();
  absl::MutexLock lock(&mu_);
  for (const Slot& slot : slots_) SY_CHECK_EQ(slot.pins, 0);
}

// Whether demand could use another slot at once if a prefetch took this one.
bool ExpertStore::LeavesOneForDemand(int slot) const {
  for (int other = 0; other < options_.num_slots; ++other) {
    if (other != slot && slots_[other].state != SlotState::kCopying && slots_[other].pins == 0) return true;
  }
  return false;
}

absl::Status ExpertStore::CheckSlot(int slot) const {
  if (0 <= slot && slot < options_.num_slots) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expert store: slot ", slot, " is not in [0, ", options_.num_slots, ")"));
}

absl::Status ExpertStore::StartCopy(const ExpertId& id, int slot, CopyPriority priority) {
  RETURN_IF_ERROR(CheckSlot(slot));
  const char* const from = options_.source == nullptr ? nullptr : options_.source(id);
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(aborted_);
  if (slots_[slot].state != SlotState::kFree) {
    return absl::FailedPreconditionError(absl::StrCat("expert store: ", id.ToString(), " cannot go to slot ", slot,
                                                      ", where ", slots_[slot].id.ToString(), " is"));
  }
  if (const auto it = slot_of_.find(id); it != slot_of_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("expert store: ", id.ToString(), " cannot go to slot ", slot, ", it has slot ", it->second));
  }
  if (priority == CopyPriority::kPrefetch && !LeavesOneForDemand(slot)) {
    return absl::FailedPreconditionError(absl::StrCat("expert store: no prefetch of ", id.ToString(), ": slot ", slot,
                                                      " is the last of ", options_.num_slots, " that demand can have"));
  }
  slots_[slot] = {.state = SlotState::kCopying,
                  .id = id,
                  .from = from,
                  .queued = MonotonicNow(),
                  .priority = priority,
                  .prefetched = priority == CopyPriority::kPrefetch,
                  .outcome = std::make_shared<Outcome>()};
  // Copied bytes are packed, padding included.
  const PackedExpert& expert = options_.expert.of(id.layer);
  gate_up_[slot] = ops::Weight::Over(expert.gate_up, MemoryOf(slot), true, options_.device);
  down_[slot] = ops::Weight::Over(expert.down, MemoryOf(slot) + expert.down_offset, true, options_.device);
  slot_of_[id] = slot;
  failed_.erase(id);
  queues_[static_cast<size_t>(priority)].push_back(slot);
  return absl::OkStatus();
}

void ExpertStore::FreeSlot(int slot) {
  slot_of_.erase(slots_[slot].id);
  slots_[slot] = Slot();
}

absl::Status ExpertStore::Evict(int slot) {
  RETURN_IF_ERROR(CheckSlot(slot));
  absl::MutexLock lock(&mu_);
  const Slot& held = slots_[slot];
  if (held.state == SlotState::kFree) return absl::OkStatus();
  const bool copying = held.state == SlotState::kCopying;
  if (held.pins > 0) {
    return absl::FailedPreconditionError(absl::StrCat("expert store: slot ", slot, " cannot be freed: ",
                                                      held.id.ToString(), copying ? " is waited for" : " is in use"));
  }
  // Chunks under way may end in a slot that is free or another expert's, whose bytes come later (NextToCopy).
  if (copying) std::erase(queues_[static_cast<size_t>(held.priority)], slot);
  if (!copying && held.prefetched && !held.used) ++counters_.wasted;
  FreeSlot(slot);
  return absl::OkStatus();
}

void ExpertStore::RaiseSlotPriority(int slot) {
  Slot& held = slots_[slot];
  if (held.state != SlotState::kCopying) return;
  held.late |= held.prefetched;
  if (held.priority == CopyPriority::kDemand) return;
  held.priority = CopyPriority::kDemand;
  std::erase(queues_[static_cast<size_t>(CopyPriority::kPrefetch)], slot);
  queues_[static_cast<size_t>(CopyPriority::kDemand)].push_back(slot);
}

void ExpertStore::RaisePriority(const ExpertId& id) {
  absl::MutexLock lock(&mu_);
  if (const auto it = slot_of_.find(id); it != slot_of_.end()) RaiseSlotPriority(it->second);
}

// The first to acquire a slot decides what its copy was: a miss, late, or a prefetch that hit.
void ExpertStore::CountAcquired(Slot* slot) {
  if (slot->used || (slot->prefetched && !slot->late)) {
    ++counters_.hits;
  } else if (slot->prefetched) {
    ++counters_.late;
  } else {
    ++counters_.misses;
  }
  slot->used = true;
}

absl::StatusOr<ExpertLease> ExpertStore::Acquire(absl::Span<const ExpertId> ids, absl::Time deadline) {
  const absl::Time begin = MonotonicNow();
  std::vector<int> slots;
  std::vector<std::shared_ptr<Outcome>> outcomes;
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(aborted_);
  for (const ExpertId& id : ids) {
    const auto it = slot_of_.find(id);
    if (it == slot_of_.end()) {
      if (const auto failed = failed_.find(id); failed != failed_.end()) return failed->second;
      return absl::NotFoundError(absl::StrCat("expert store: nobody began to copy ", id.ToString()));
    }
    slots.push_back(it->second);
  }
  for (const int slot : slots) {
    RaiseSlotPriority(slot);
    ++slots_[slot].pins;
    outcomes.push_back(slots_[slot].outcome);
  }
  const auto done = [&] {
    return std::all_of(outcomes.begin(), outcomes.end(), [](const auto& outcome) { return outcome->done; });
  };
  AwaitUntil(&mu_, absl::Condition(&done), deadline);
  counters_.wait_seconds += absl::ToDoubleSeconds(MonotonicNow() - begin);
  absl::Status status;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i]->done) {
      status.Update(absl::DeadlineExceededError(absl::StrCat(
          "expert store: waited ", absl::FormatDuration(MonotonicNow() - begin), " for ", ids[i].ToString(), ", ",
          slots_[slots[i]].copied, " of ", expert_bytes(ids[i].layer), " bytes of it are there")));
    } else {
      status.Update(outcomes[i]->status);
    }
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots_[slots[i]];
    // A copy that failed has left its slot, and the pin with it.
    if (!outcomes[i]->status.ok()) continue;
    if (status.ok()) {
      CountAcquired(&slot);
    } else {
      --slot.pins;
    }
  }
  RETURN_IF_ERROR(status);
  return ExpertLease(this, std::move(slots));
}

void ExpertStore::Unpin(absl::Span<const int> slots, const std::shared_ptr<const DeviceEvent>& passed) {
  absl::MutexLock lock(&mu_);
  for (const int slot : slots) {
    SY_CHECK_GT(slots_[slot].pins, 0);
    --slots_[slot].pins;
    if (passed != nullptr) last_use_[slot] = passed;
  }
}

void ExpertStore::Abort(absl::Status status) {
  SY_CHECK(!status.ok());
  absl::MutexLock lock(&mu_);
  if (!aborted_.ok()) return;
  aborted_ = std::move(status);
  for (int slot = 0; slot < options_.num_slots; ++slot) {
    if (slots_[slot].state == SlotState::kCopying) FinishCopy(slot, aborted_);
  }
}

void ExpertStore::FinishCopy(int slot, const absl::Status& status) {
  Slot& held = slots_[slot];
  std::erase(queues_[static_cast<size_t>(held.priority)], slot);
  held.outcome->done = true;
  held.outcome->status = status;
  if (status.ok()) {
    held.state = SlotState::kFilled;
    if (held.prefetched) ++counters_.prefetched;
    return;
  }
  ++counters_.failed;
  failed_[held.id] = status;
  FreeSlot(slot);
}

int ExpertStore::NextToCopy() const {
  for (const std::deque<int>& queue : queues_) {
    for (const int slot : queue) {
      const Slot& held = slots_[slot];
      if (held.started == expert_bytes(held.id.layer)) continue;
      const auto& chunks = under_way_[slot];
      if (chunks.empty() || chunks.begin()->second.outcome == held.outcome) return slot;
    }
  }
  return -1;
}

void ExpertStore::StartChunk(int slot) {
  Slot& held = slots_[slot];
  const ExpertChunk chunk = {.id = held.id,
                             .slot = slot,
                             .offset = held.started,
                             .bytes = std::min(options_.chunk_bytes, expert_bytes(held.id.layer) - held.started),
                             .from = held.from == nullptr ? nullptr : held.from + held.started,
                             .to = MemoryOf(slot) + held.started,
                             .after = held.started == 0 ? last_use_[slot] : nullptr};
  held.started += chunk.bytes;
  under_way_[slot][chunk.offset] = {held.outcome, held.queued};
  ++num_under_way_;
  mu_.Unlock();
  copier_->Start(chunk);
  mu_.Lock();
}

void ExpertStore::AwaitChunk() {
  mu_.Unlock();
  const ExpertCopier::Finished finished = copier_->Await();
  mu_.Lock();
  const ExpertChunk& chunk = finished.chunk;
  const auto it = under_way_[chunk.slot].find(chunk.offset);
  SY_CHECK(it != under_way_[chunk.slot].end());
  const UnderWay mine = std::move(it->second);
  under_way_[chunk.slot].erase(it);
  --num_under_way_;
  if (options_.bytes_per_second > 0) {
    // Counts from the time when the chunk was queued, else a wait that ends late would slow the link.
    link_free_at_ = std::max(mine.queued, link_free_at_) +
                    absl::Seconds(static_cast<double>(chunk.bytes) / options_.bytes_per_second);
    AwaitUntil(&mu_, absl::Condition(this, &ExpertStore::stopping), link_free_at_);
  }
  counters_.copied_bytes += chunk.bytes;
  Slot& held = slots_[chunk.slot];
  if (held.outcome != mine.outcome) return;  // it was given up, or has failed
  held.copied += chunk.bytes;
  if (!finished.status.ok() || held.copied == expert_bytes(held.id.layer)) FinishCopy(chunk.slot, finished.status);
}

void ExpertStore::RunCopies() {
  const int depth = copier_->depth();
  absl::MutexLock lock(&mu_);
  for (;;) {
    if (num_under_way_ == 0) mu_.Await(absl::Condition(this, &ExpertStore::HasWork));
    const int next = stopping() || num_under_way_ == depth ? -1 : NextToCopy();
    if (next >= 0) {
      StartChunk(next);
    } else if (num_under_way_ > 0) {
      AwaitChunk();
    } else if (stopping()) {
      return;
    }
  }
}

std::vector<ExpertStore::SlotView> ExpertStore::Slots() const {
  absl::MutexLock lock(&mu_);
  std::vector<SlotView> views;
  for (const Slot& slot : slots_) {
    views.push_back({.state = slot.state, .pinned = slot.pins > 0, .id = slot.id});
  }
  return views;
}

absl::Status ExpertStore::AwaitCopies(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const bool idle = AwaitUntil(&mu_, absl::Condition(this, &ExpertStore::IsIdle), deadline);
  RETURN_IF_ERROR(aborted_);
  if (idle) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("expert store: ", queues_[0].size() + queues_[1].size(), " copies are still under way"));
}

absl::Status ExpertStore::AwaitCopies(int64_t copied_before, int64_t total, absl::Time deadline, Progress progress) {
  constexpr absl::Duration kReportEvery = absl::Milliseconds(250);
  for (;;) {
    const absl::Status waited = AwaitCopies(std::min(deadline, MonotonicNow() + kReportEvery));
    if (!waited.ok() && (!absl::IsDeadlineExceeded(waited) || MonotonicNow() >= deadline)) return waited;
    const int64_t copied = counters().copied_bytes - copied_before;
    if (!progress(std::min(total, copied), total)) {
      return absl::CancelledError("expert slots: stopped while they were filled");
    }
    if (waited.ok()) return waited;
  }
}

SlotState ExpertStore::StateOf(const ExpertId& id) const {
  absl::MutexLock lock(&mu_);
  const auto it = slot_of_.find(id);
  return it == slot_of_.end() ? SlotState::kFree : slots_[it->second].state;
}

absl::Status ExpertStore::FailureOf(const ExpertId& id) const {
  absl::MutexLock lock(&mu_);
  const auto it = failed_.find(id);
  return it == failed_.end() ? absl::OkStatus() : it->second;
}

ExpertStoreCounters ExpertStore::counters() const {
  absl::MutexLock lock(&mu_);
  ExpertStoreCounters counters = counters_;
  counters.path = copier_->path();
  return counters;
}

}  // namespace switchyard::moe
