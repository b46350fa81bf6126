// The capacity of experts in training: of the rows of a micro-batch of all ranks an expert takes so many at most; a
// row's choice that finds no room is dropped, and the row goes on without that expert (with none left by the residual
// stream alone).
//
// How many: C = ceil(factor · K · rows / E), rows counted over all ranks: GShard's C = 2N / (G · E) for its top-2 with
// one group G of all tokens (Lepikhin 2020, §2.2), Switch's tokens / experts · factor for top-1 (Fedus 2021, §2.2),
// Parm's k·f·B·L/E (scheduler/PAPERS.md), computed in the order of Megatron-LM's get_capacity.  No least capacity.
// Which: first come, first served, choice by choice: all rows' first choices before any second one (GShard, Algorithm
// 1, without its random dropping of second choices); within a choice by the global index of the row, which is by rank,
// then as the rank has its rows.  Where ranks have neighbouring samples, as jobs deal them out, that is the order of
// samples on any number of ranks.
// The weights of a row's other choices stay as they were: a dropped choice's share is lost, also where weights were
// divided by their sum (GShard normalizes before it looks for room, and so does Megatron-LM).  Who balances experts
// counts choices before they are dropped (GShard's c_e, line 13).
// Dropping depends on all rows: a row's bits do depend on its company here.  So serving has no capacity.
// Thread-compatible.  On the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// What a layer is told of it.
struct ExpertCapacity {
  int64_t rows = 0;                     // C; 0 = an expert takes all rows
  comm::Communicator* ranks = nullptr;  // borrowed: all whose rows count; not always those among which rows travel
};

// C.  factor 0: 0.
int64_t CapacityOf(double factor, int64_t top_k, int64_t rows, int64_t experts);

// Drops this rank's choices that find no room: topk_idx becomes -1, topk_weight 0; returns how many those were.
// counts: [R, K, E] rows of each rank whose k-th choice is e, before anything was dropped.
int64_t DropBeyondCapacity(int64_t capacity, absl::Span<const int32_t> counts, int rank, int64_t experts,
                           const TensorView& topk_idx,      // [T, K] int32, contiguous, in [0, experts)
                           const TensorView& topk_weight);  // [T, K] floating

class CapacityGate {
 public:
  // The same after the ranks have told each other their counts: `call`, a collective over capacity.ranks,
  // which all of them call, also with zero rows.  Errors: the communicator's.
  absl::StatusOr<int64_t> Drop(const ExpertCapacity& capacity, const comm::CommCall& call, int64_t experts,
                               const TensorView& topk_idx, const TensorView& topk_weight);

 private:
  std::vector<int32_t> mine_, counts_;  // [K, E], [R, K, E]
};

}  // namespace switchyard::moe
