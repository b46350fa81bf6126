// Builder of plain expert parallelism: every rank holds some experts, rows travel by all-to-all.
//
// With one micro-batch: gate, dispatch, [shared expert], experts, combine.  With n > 1 the dispatch of chunk i+1 starts
// before the experts of chunk i run, and dispatches and combines alternate, S0 S1 R0 S2 R1 … R(n-1), so at most two
// chunks are in flight.  With in_turn a dispatch starts when the one before it has arrived: rows of early ranks cannot
// overtake those of the earlier chunk that everybody waits for (tests/bench/training.md), but no chunk is packed while
// another travels.  Pure: the same options give the same program on every rank.
#pragma once

#include "scheduler/pipeline/moe_schedule.h"

namespace switchyard::pipeline {

inline constexpr int kMaxMicroBatches = 64;

struct ExpertParallelOptions {
  int micro_batches = 1;       // [1, kMaxMicroBatches]
  bool shared_expert = false;  // the layer has one; it runs under the first dispatch
  bool in_turn = false;        // one dispatch at a time
};

// REQUIRES: the options are in range.  The result is valid.
MoeSchedule BuildExpertParallel(const ExpertParallelOptions& options);

}  // namespace switchyard::pipeline
