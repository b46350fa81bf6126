// The experts that a rank has on its device, of many more in the host's memory: slots, and copies into them.
//
// A mechanism: what is copied, when, and what makes room for it, its caller decides (expert_cache.h).  There are
// num_slots slots of real memory.  StartCopy queues a copy into a free slot; a thread of the store's own moves it in
// chunks, so that a copy that somebody waits for overtakes prefetches at the next chunk.  There is at most one copy of
// a key, however many wait for it.  Acquire pins slots; while the lease lives they stay as they are.  A copy that fails
// wakes everybody who waits for it with its status, and its slot is free again.
//
// On a device, what a lease was for may still be enqueued when it ends: ReleaseBehind says behind what, and the slot's
// next copy waits for that, in its own queue.  A slot that Acquire returns is filled: streams need not wait for it.
//
// One slot is kept for demand: no prefetch is taken that would leave none that is free, or filled and not pinned.
// Every wait has the caller's deadline.  Thread-safe.  Leases must be gone before the store is.
// Does not do: choosing victims, checking contents, leases of one slot behind several streams.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/moe/experts/expert_copier.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

enum class CopyPriority : uint8_t { kDemand, kPrefetch };
enum class SlotState : uint8_t { kFree, kCopying, kFilled };

// Since the store was made.  hits + misses + late is how many experts were acquired.
struct ExpertStoreCounters {
  int64_t hits = 0;        // there when they were acquired, before or by a prefetch
  int64_t misses = 0;      // copied on demand
  int64_t late = 0;        // acquired while their prefetch was under way
  int64_t prefetched = 0;  // prefetches that arrived
  int64_t wasted = 0;      // of those, given up before anybody had acquired them
  int64_t failed = 0;      // copies
  int64_t copied_bytes = 0;
  double wait_seconds = 0;  // of all Acquire calls
};

struct ExpertStoreOptions {
  PackedExpert expert;
  int num_slots = 0;  // at least 1
  Device device = Device::Cpu();
  int64_t chunk_bytes = 2 << 20;
  // > 0: no copy ends before its bytes and those before it could have come at this rate: a link that this machine
  // lacks.
  double bytes_per_second = 0;
  // Where an expert's bytes are; must stay there.  Called by StartCopy.
  std::function<const char*(const ExpertId&)> source;
};

class ExpertStore;

// Slots that stay as they are while it lives.  Movable.
class ExpertLease {
 public:
  ExpertLease() = default;
  ExpertLease(ExpertLease&& other) noexcept { *this = std::move(other); }
  ExpertLease& operator=(ExpertLease&& other) noexcept;
  ~ExpertLease() { Release(); }

  int64_t size() const { return static_cast<int64_t>(slots_.size()); }
  // In the order in which they were asked for.
  const ops::Weight& gate_up(int64_t i) const;
  const ops::Weight& down(int64_t i) const;
  int slot(int64_t i) const { return slots_[static_cast<size_t>(i)]; }
  // Nothing reads the slots any more.
  void Release();
  // The same for what the stream holds by now, which may read them yet; every lease of a store behind the same stream.
  // Null: it holds nothing.  Errors: the device's; then the slots stay pinned as long as this lives.
  absl::Status ReleaseBehind(const Stream* stream);

 private:
  friend class ExpertStore;
  ExpertLease(ExpertStore* store, std::vector<int> slots) : store_(store), slots_(std::move(slots)) {}

  ExpertStore* store_ = nullptr;
  std::vector<int> slots_;
};

class ExpertStore {
 public:
  // ResourceExhausted: the device's memory.  InvalidArgument: options.
  static absl::StatusOr<std::unique_ptr<ExpertStore>> Create(ExpertStoreOptions options,
                                                             std::unique_ptr<ExpertCopier> copier);
  // Aborts, and waits for the chunk under way.
  ~ExpertStore();

  // Errors: FailedPrecondition (the slot is not free, the expert has one, a prefetch would take demand's slot);
  // InvalidArgument (no such slot); what Abort said.  Does not wait.  attempt: for the copier, with every chunk.
  absl::Status StartCopy(const ExpertId& id, int slot, CopyPriority priority, int64_t attempt = 0);
  // The slot becomes free; a copy that has not arrived, and that nobody waits for, is given up.  Does not wait.
  // FailedPrecondition: pinned, or waited for.
  absl::Status Evict(int slot);
  // Somebody will wait for it: its prefetch goes before the others from its next chunk on.  Nothing if it has arrived.
  void RaisePriority(const ExpertId& id);
  // Has the copier look at the expert's slot once more, by the thread that copies, when nothing is to be copied and it
  // is there: from its first byte, whatever look was under way.  Nothing if it has no slot; given up when the slot is.
  // attempt: another one for each look; the copier's.
  void Recheck(const ExpertId& id, int64_t attempt);
  bool rechecking(const ExpertId& id) const;  // not all of it has been looked at
  // Waits until all of them are in slots and pins those.  Errors: NotFound (no copy was started), DeadlineExceeded
  // (with what is missing), the failed copy's (also if it had failed before), what Abort said; nothing is pinned then.
  // Hurries prefetches.
  absl::StatusOr<ExpertLease> Acquire(absl::Span<const ExpertId> ids, absl::Time deadline);
  // Waits until nothing is being copied.  Errors: DeadlineExceeded, Abort's status.
  absl::Status AwaitCopies(absl::Time deadline);
  // The same; calls progress about four times a second with the bytes copied since counters().copied_bytes was
  // copied_before, at most `total`.  Cancelled: progress returned false.
  using Progress = absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)>;
  absl::Status AwaitCopies(int64_t copied_before, int64_t total, absl::Time deadline, Progress progress);
  // Everybody who waits, now or later, gets this; copies stop.  Sticky.
  void Abort(absl::Status status);

  struct SlotView {
    SlotState state = SlotState::kFree;
    bool pinned = false;
    ExpertId id = {};  // unless free
  };
  int num_slots() const { return options_.num_slots; }
  std::vector<SlotView> Slots() const;
  SlotState StateOf(const ExpertId& id) const;  // kFree: it has no slot
  // Why the last copy of an expert without a slot failed; OK if it did not.
  absl::Status FailureOf(const ExpertId& id) const;
  ExpertStoreCounters counters() const;
  int64_t bytes() const { return memory_.bytes(); }

 private:
  friend class ExpertLease;

  // What a copy's waiters look at; they and the slot own it together.
  struct Outcome {
    bool done = false;
    absl::Status status;
  };
  struct Slot {
    SlotState state = SlotState::kFree;
    ExpertId id;
    const char* from = nullptr;
    int64_t copied = 0;   // bytes
    int64_t attempt = 0;  // of the copy
    absl::Time queued;
    int pins = 0;  // leases, and waiters for the copy
    CopyPriority priority = CopyPriority::kDemand;
    bool prefetched = false;  // began as such
    bool late = false;        // somebody wanted it before it had arrived
    bool used = false;        // was acquired
    int64_t rechecked = 0;    // bytes
    int64_t look = 0;         // the attempt that looks at it
    std::shared_ptr<Outcome> outcome;
  };

  ExpertStore(ExpertStoreOptions options, std::unique_ptr<ExpertCopier> copier, Buffer memory);
  char* MemoryOf(int slot) const { return static_cast<char*>(memory_.data()) + slot * options_.expert.bytes; }
  absl::Status CheckSlot(int slot) const;
  void RunCopies();
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping() || copying() || !rechecks_.empty(); }
  bool copying() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !queues_[0].empty() || !queues_[1].empty(); }
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping() || !copying(); }
  bool stopping() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !aborted_.ok(); }
  // One chunk of the slot's copy, and the time that it takes; unlocks while it moves bytes.
  void CopyChunk(int slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RecheckChunk(int slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishCopy(int slot, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RaiseSlotPriority(int slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountAcquired(Slot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FreeSlot(int slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool LeavesOneForDemand(int slot) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // passed: what has to pass before the slots are written; null: nothing new.
  void Unpin(absl::Span<const int> slots, const std::shared_ptr<const DeviceEvent>& passed);

  const ExpertStoreOptions options_;
  const std::unique_ptr<ExpertCopier> copier_;  // the copy thread's
  const Buffer memory_;                         // [num_slots] of expert.bytes
  std::vector<ops::Weight> gate_up_, down_;     // [num_slots] over memory_; const once made

  mutable absl::Mutex mu_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<const DeviceEvent>> last_use_ ABSL_GUARDED_BY(mu_);  // [num_slots] shared by a lease's
  absl::flat_hash_map<ExpertId, int> slot_of_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ExpertId, absl::Status> failed_ ABSL_GUARDED_BY(mu_);  // last copies, of those without a slot
  std::array<std::deque<int>, 2> queues_ ABSL_GUARDED_BY(mu_);  // [CopyPriority] slots whose copies are not done
  std::deque<int> rechecks_ ABSL_GUARDED_BY(mu_);               // slots
  absl::Time link_free_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  ExpertStoreCounters counters_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace switchyard::moe
