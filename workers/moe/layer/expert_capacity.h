// The capacity of experts in training: an expert takes at most C rows of a micro-batch of all ranks.  A row's choice
// without room is dropped, and the row goes on without that expert (with no expert left, by the residual stream alone).
//
// C = ceil(factor · K · rows / E), rows of all ranks: GShard's C = 2N / (G · E) for its top-2 with one group G of all
// tokens (Lepikhin 2020, §2.2), Switch's tokens / experts · factor for top-1 (Fedus 2021, §2.2), Parm's k·f·B·L/E
// (scheduler/PAPERS.md), computed in the order of Megatron-LM's get_capacity.  There is no least capacity.
// Rooms go to all rows' first choices before any second one (GShard, Algorithm 1, without its random dropping of second
// choices); within a choice by rank, then as the rank has its rows: the order of samples on any number of ranks, as
// jobs give neighbouring samples to a rank. Weights of a row's other choices stay, so a dropped choice's share is lost,
// also where weights were divided by their sum (as in GShard and Megatron-LM).  Balancing losses count choices before
// dropping (GShard's c_e, line 13). Dropping is not batch-invariant, so serving has no capacity.  Thread-compatible. On
// the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// A layer's capacity.
struct ExpertCapacity {
  int64_t rows = 0;                     // C; 0 = an expert takes all rows
  comm::Communicator* ranks = nullptr;  // borrowed: all whose rows count, not always those that exchange rows
};

// C.  factor 0: 0.
int64_t CapacityOf(double factor, int64_t top_k, int64_t rows, int64_t experts);

// Drops this rank's choices without room: topk_idx becomes -1, topk_weight 0; returns how many.
// counts: [R, K, E] rows of each rank whose k-th choice is e, before anything was dropped.
int64_t DropBeyondCapacity(int64_t capacity, absl::Span<const int32_t> counts, int rank, int64_t experts,
                           const TensorView& topk_idx,      // [T, K] int32, contiguous, in [0, experts)
                           const TensorView& topk_weight);  // [T, K] floating

class CapacityGate {
 public:
  // The same after an exchange of the ranks' counts: `call`, a collective over capacity.ranks, which all of them make,
  // also with zero rows.  Errors: the communicator's.
  absl::StatusOr<int64_t> Drop(const ExpertCapacity& capacity, const comm::CommCall& call, int64_t experts,
                               const TensorView& topk_idx, const TensorView& topk_weight);

 private:
  std::vector<int32_t> mine_, counts_;  // [K, E], [R, K, E]
};

}  // namespace switchyard::moe
