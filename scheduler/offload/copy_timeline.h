// How long plans take: one copy engine beside one compute engine, in integer ticks.
//
// A policy that weighs time keeps one as its virtual clock, and the simulator measures policies with it.  The link
// copies chunk by chunk: the first demand copy whose slot is free (every earlier use of it is over), else the first
// such prefetch.  Computing goes use by use; a use takes its share of the layer's ticks by rows, and waits for its
// copy.  The gate and attention take no time of their own, and dropping costs nothing but the chunk in flight.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/offload/policies/cache_policy.h"

namespace switchyard::offload {

struct TimelineCounts {
  int64_t layers = 0;
  int64_t uses = 0;
  int64_t hits = 0;        // uses whose expert was in its slot, copied, when the gate had run
  int64_t late = 0;        // uses of a prefetched expert whose copy was still under way (no hits)
  int64_t copies = 0;      // demand copies started by a plan
  int64_t prefetches = 0;  // prefetches that began to copy
  int64_t wasted = 0;      // prefetches that began and were dropped or overwritten without a use
  int64_t link_ticks = 0;  // that the link was busy
};

class CopyTimeline {
 public:
  CopyTimeline(const OffloadShape& shape, const CopyCost& cost);

  // Runs one layer; returns the ticks from its gate to its last use.
  int64_t Run(const LayerPlan& plan, const LayerNeed& need);
  // Returns what Run would return, and the link's ticks in it; changes nothing.  Takes time linear in the plan and the
  // waiting copies, not in slots.
  struct Outlook {
    int64_t ticks = 0;
    int64_t link_ticks = 0;
  };
  Outlook Try(const LayerPlan& plan, const LayerNeed& need);
  // Before the first layer: slot i holds resident[i].
  void Preload(absl::Span<const ExpertKey> resident);

  // Whether the copy of the expert is over, or there never was one.
  bool Arrived(ExpertKey key) const { return pending_chunks_[key] == 0; }
  // Chunks of the expert that are still to copy.
  int32_t PendingChunks(ExpertKey key) const { return pending_chunks_[key]; }
  // The expert that each slot holds or waits for; kNoExpert = empty.
  absl::Span<const ExpertKey> holds() const { return holds_; }
  const TimelineCounts& counts() const { return counts_; }

 private:
  struct Job {
    ExpertKey key = kNoExpert;
    int32_t slot = -1;
    int32_t after_uses = 0;  // uses of this plan that must be over
  };
  // The state of an expert, and of a slot, that a plan may change.
  struct KeyState {
    ExpertKey key = kNoExpert;
    int32_t pending_chunks = 0;
    int64_t arrived_at = 0;
    uint8_t unused_prefetch = 0;
  };
  struct SlotState {
    int32_t slot = -1;
    ExpertKey holds = kNoExpert;
  };
  void Save(const LayerPlan& plan);
  void Restore();
  void Enqueue(const LayerPlan& plan);
  void Forget(int slot);
  bool CopyChunk();
  void CopyUntil(int64_t ticks);

  OffloadShape shape_;
  int64_t chunk_ticks_;
  int32_t chunks_per_copy_;
  int64_t now_ = 0;
  int64_t link_time_ = 0;  // when the link ends its present chunk
  int32_t uses_done_ = 0;
  std::vector<Job> demands_, prefetches_;
  std::vector<int32_t> pending_chunks_;   // [L * E]
  std::vector<int64_t> arrived_at_;       // [L * E] when its last chunk ended
  std::vector<uint8_t> unused_prefetch_;  // [L * E] whether it was prefetched and not used since
  std::vector<ExpertKey> holds_;          // [slots]
  std::vector<int32_t> last_use_;         // [slots] scratch: uses of the plan so far that must be over
  std::vector<ExpertKey> used_;           // [slots] scratch: what the plan used there last
  std::vector<KeyState> saved_keys_;      // scratch of Try
  std::vector<SlotState> saved_slots_;    // scratch of Try
  TimelineCounts counts_;
};

}  // namespace switchyard::offload
