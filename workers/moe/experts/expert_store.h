// The experts that a rank has on its device, of many more in the host's memory: slots, and copies into them.
//
// The caller decides what is copied and evicted (expert_offload.h).  StartCopy queues a copy into a free slot; the
// store's thread moves it in chunks, as many at once as the copier can, so that a copy with waiters overtakes
// prefetches at the next chunk.  An expert has at most one copy.  Acquire pins slots as long as its lease lives.  A
// copy that fails wakes its waiters with its status and frees its slot.  On a device, work that reads a slot may still
// be enqueued when the lease ends: after ReleaseBehind the slot's next copy waits for it, in its own queue.  Acquired
// slots are filled: streams need not wait for them.
//
// One slot is kept for demand: a prefetch is refused if it would leave none that is free, or filled and not pinned.
// Thread-safe.  Leases must be destroyed before the store.
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
  CopyPath path = CopyPath::kMemory;
};

struct ExpertStoreOptions {
  ExpertForms expert;
  int num_slots = 0;  // at least 1
  Device device = Device::Cpu();
  int64_t chunk_bytes = 2 << 20;
  int64_t slot_alignment = kDeviceAlignment;  // of a slot's first byte and length
  double bytes_per_second = 0;                // > 0: simulates a link of this rate
  // Returns an expert's bytes, which must stay there.  Called by StartCopy.  None: the copier knows where they are.
  std::function<const char*(const ExpertId&)> source;
};

class ExpertStore;

// Keeps slots as they are while it lives.  Movable.
class ExpertLease {
 public:
  ExpertLease() = default;
  ExpertLease(ExpertLease&& other) noexcept { *this = std::move(other); }
  ExpertLease& operator=(ExpertLease&& other) noexcept;
  ~ExpertLease() { Release(); }

  int64_t size() const { return static_cast<int64_t>(slots_.size()); }
  // In the order of Acquire's ids.
  const ops::Weight& gate_up(int64_t i) const;
  const ops::Weight& down(int64_t i) const;
  int slot(int64_t i) const { return slots_[static_cast<size_t>(i)]; }
  // Releases slots that nothing reads any more.
  void Release();
  // The same behind the work that the stream has by now (null: none), which may read them; a store's leases must all
  // use the same stream.  Errors: the device's; then the slots stay pinned as long as this lives.
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
  // Aborts and waits for chunks under way.
  ~ExpertStore();

  // Does not wait.  Errors: FailedPrecondition (the slot is not free, the
  // expert has one, a prefetch would take demand's slot), InvalidArgument (no such slot), Abort's status.
  absl::Status StartCopy(const ExpertId& id, int slot, CopyPriority priority);
  // Frees the slot and gives up a copy without waiters.  Does not wait.  FailedPrecondition: pinned, or waited for.
  absl::Status Evict(int slot);
  // Makes a prefetch a copy on demand from its next chunk on.  Does nothing if it has arrived.
  void RaisePriority(const ExpertId& id);
  // Waits until all of them are in slots and pins those; raises prefetches' priority.  Errors: NotFound (no copy was
  // started), DeadlineExceeded (with what is missing), a failed copy's (also an earlier one), Abort's status; then
  // nothing is pinned.
  absl::StatusOr<ExpertLease> Acquire(absl::Span<const ExpertId> ids, absl::Time deadline);
  // Waits until nothing is being copied.  Errors: DeadlineExceeded, Abort's status.
  absl::Status AwaitCopies(absl::Time deadline);
  // The same; calls progress about four times a second and at the end with the bytes copied since
  // counters().copied_bytes was copied_before, at most `total`.  Cancelled: progress returned false.
  using Progress = absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)>;
  absl::Status AwaitCopies(int64_t copied_before, int64_t total, absl::Time deadline, Progress progress);
  // Stops copies and returns this status to all waiters, now and later.
  void Abort(absl::Status status);

  struct SlotView {
    SlotState state = SlotState::kFree;
    bool pinned = false;
    ExpertId id = {};  // unless free
  };
  int num_slots() const { return options_.num_slots; }
  std::vector<SlotView> Slots() const;
  SlotState StateOf(const ExpertId& id) const;  // kFree: it has no slot
  // Why the last copy of an expert without a slot failed; else OK.
  absl::Status FailureOf(const ExpertId& id) const;
  ExpertStoreCounters counters() const;
  int64_t bytes() const { return buffer_.bytes(); }
  int64_t expert_bytes() const { return options_.expert.bytes(); }  // of the largest
  int64_t expert_bytes(int layer) const { return options_.expert.of(layer).bytes; }

 private:
  friend class ExpertLease;

  // A copy's outcome, owned by its waiters and the slot together.
  struct Outcome {
    bool done = false;
    absl::Status status;
  };
  struct Slot {
    SlotState state = SlotState::kFree;
    ExpertId id;
    const char* from = nullptr;
    int64_t started = 0;  // bytes of chunks that were given to the copier
    int64_t copied = 0;   // bytes of those that are over
    absl::Time queued;
    int pins = 0;  // leases, and waiters for the copy
    CopyPriority priority = CopyPriority::kDemand;
    bool prefetched = false;  // began as such
    bool late = false;        // somebody wanted it before it had arrived
    bool used = false;        // was acquired
    std::shared_ptr<Outcome> outcome;
  };

  // A chunk that the copier has.
  struct UnderWay {
    std::shared_ptr<Outcome> outcome;
    absl::Time queued;
  };

  ExpertStore(ExpertStoreOptions options, std::unique_ptr<ExpertCopier> copier, Buffer buffer);
  char* MemoryOf(int slot) const { return memory_ + slot * slot_bytes_; }
  absl::Status CheckSlot(int slot) const;
  void RunCopies();
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping() || copying(); }
  bool copying() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !queues_[0].empty() || !queues_[1].empty(); }
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping() || !copying(); }
  bool stopping() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !aborted_.ok(); }
  // The slot whose next chunk is to be copied; -1: none can be now.
  int NextToCopy() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // These unlock while the copier works.
  void StartChunk(int slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for a chunk, and for a simulated link.
  void AwaitChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishCopy(int slot, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RaiseSlotPriority(int slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountAcquired(Slot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FreeSlot(int slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool LeavesOneForDemand(int slot) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // passed: must pass before the slots are written; may be null.
  void Unpin(absl::Span<const int> slots, const std::shared_ptr<const DeviceEvent>& passed);

  const ExpertStoreOptions options_;
  const std::unique_ptr<ExpertCopier> copier_;  // the copy thread's
  const int64_t slot_bytes_;                    // of the largest expert, rounded up
  const Buffer buffer_;
  char* const memory_;                       // [num_slots] of slot_bytes_, in buffer_
  std::vector<ops::Weight> gate_up_, down_;  // [num_slots] over memory_; changed where a slot is free

  mutable absl::Mutex mu_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  // [num_slots] chunks that the copier has, also of copies that were given up: nothing else is copied there before.
  std::vector<absl::flat_hash_map<int64_t, UnderWay>> under_way_ ABSL_GUARDED_BY(mu_);
  int num_under_way_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<const DeviceEvent>> last_use_ ABSL_GUARDED_BY(mu_);  // [num_slots] shared by a lease's
  absl::flat_hash_map<ExpertId, int> slot_of_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ExpertId, absl::Status> failed_ ABSL_GUARDED_BY(mu_);  // last copies, of those without a slot
  std::array<std::deque<int>, 2> queues_ ABSL_GUARDED_BY(mu_);  // [CopyPriority] slots whose copies are not done
  absl::Time link_free_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  ExpertStoreCounters counters_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace switchyard::moe
