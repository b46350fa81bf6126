// A rank's running sequences between steps: tokens, block table and sampling state of each slot.  Plans are deltas
// against them, and are checked first: one that does not fit is the server's fault and gives Internal with the slot and
// both values; nothing has changed then.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/batching/step.h"
#include "workers/ops/sampling/sampling.h"

namespace switchyard::model {

struct Slot {
  bool in_use = false;
  bool broken = false;          // its logits were NaN or Inf: later items are not run
  std::vector<int32_t> tokens;  // prompt, then what was emitted or sampled; kPendingToken: the device knows it
  int32_t num_prompt_tokens = 0;
  int32_t adapter = 0;       // of its rows, from 1; 0 = none
  int32_t num_computed = 0;  // positions whose keys are in the cache; the next item starts there
  std::vector<batching::BlockId> block_table;
  batching::SamplingParams sampling;
  ops::TokenHistory history;
  int64_t num_pending = 0;  // sampled tokens that only the device knows
  uint64_t generation = 0;  // rises with every sequence in this slot

  int64_t num_output() const { return history.num_output() + num_pending; }
};

inline constexpr int32_t kPendingToken = -1;

struct SlotLimits {
  int32_t num_slots = 0;
  int32_t num_blocks = 0;
  int32_t block_size = 0;
  int32_t vocab_size = 0;
  int64_t context = 0;   // positions that a sequence may have
  int32_t max_rows = 0;  // of one plan
  int32_t num_adapters = 0;
};

class SequenceSlots {
 public:
  explicit SequenceSlots(const SlotLimits& limits);

  // Checks the whole plan against the slots without changing any.
  absl::Status Validate(const batching::RankPlan& plan) const;
  // Checks the masks of a plan that Validate has found good.
  absl::Status ValidateMasks(const batching::RankPlan& plan, const batching::RankMasks& masks) const;
  // Empties freed slots and applies each item's init and new blocks.  REQUIRES: Validate(plan) is OK.
  void Apply(const batching::RankPlan& plan);
  // Marks the item's queries as computed.
  void Advance(const batching::StepItem& item) { slots_[item.slot].num_computed = item.start_pos + item.num_query; }
  // Appends a sampled token.
  void Append(batching::SlotId slot, int32_t token);
  // Appends a token that only the device knows.
  void AppendPending(batching::SlotId slot);
  // Sets that token, unless another sequence is in the slot by then.
  void Resolve(batching::SlotId slot, uint64_t generation, int64_t position, int32_t token);
  // Marks its sequence as broken.
  void Break(batching::SlotId slot) { slots_[slot].broken = true; }
  // Empties every slot (a new epoch of the group).
  void Clear();

  const Slot& slot(batching::SlotId id) const { return slots_[id]; }

 private:
  absl::Status ValidateItem(const batching::StepItem& item, const Slot& before) const;

  SlotLimits limits_;
  std::vector<Slot> slots_;
};

}  // namespace switchyard::model
