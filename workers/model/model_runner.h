// Executes one rank's part of a StepPlan: slots, batch, forward pass, sampling → RankResult.
//
// Owns the rank's slots and KV cache; borrows the model.  Thread-compatible: the worker's step thread is its one user.
// What a step samples stays in the slot, so the next plan may be executed before the server has seen the result.
// Errors: Internal for a plan that does not fit the slots (nothing has changed then), Unimplemented for what is not built
// (speculation, token masks, adapters); the communicator's pass through: the epoch is over then, and Reset must follow.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/batching/step.h"
#include "workers/model/batch.h"
#include "workers/model/kv_cache.h"
#include "workers/model/model.h"
#include "workers/model/slot_table.h"
#include "workers/tensor/device.h"

namespace switchyard {

struct RunnerOptions {
  int32_t num_slots = 0;        // EngineOptions.max_num_seqs
  int32_t block_size = 16;
  int64_t kv_cache_bytes = 0;   // > 0
  int32_t max_rows = 0;         // EngineOptions.max_batched_tokens
  int64_t context = 0;          // positions a sequence may have; <= the model's RoPE table
};

class ModelRunner {
 public:
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Create(Model* model, const Stream& stream,
                                                             const RunnerOptions& options);

  // Runs the plan's part of this rank.  Every rank of the group must call it for every step, also with an empty plan.
  absl::StatusOr<RankResult> Execute(const StepPlan& plan, const RankPlan& rank_plan);

  // Empties all slots: a new epoch.  The cache's contents are forgotten.
  void Reset();

  int32_t num_blocks() const { return cache_.num_blocks(); }
  const SlotTable& slots() const { return slots_; }
};

}  // namespace switchyard
