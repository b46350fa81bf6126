// Builder of plain expert parallelism: every rank holds some experts, rows travel by all-to-all.
//
// With one micro-batch: gate, dispatch, [shared expert], experts, combine.  With n > 1 the dispatch of chunk i+1 starts
// before the experts of chunk i run, and dispatches and combines alternate, S0 S1 R0 S2 R1 … R(n-1), so at most two
// chunks are in flight, and two slots of dispatched rows and of outputs are enough, with one of hidden rows.  With
// in_turn a dispatch starts when the one before it has arrived: rows of early ranks cannot overtake those of the
// earlier chunk that everybody waits for (tests/bench/training.md), but no chunk is packed while another travels.
// With dispatch_first, S0 S1 … S(n-1) R0 … R(n-1), no dispatch waits behind a combine, and each chunk has slots
// of its own.  FasterMoE is that order with chunks cut by peers, FastMoE is one micro-batch, Tutel a
// number that is fixed.
//
// Backward has the same order, of gradients; the experts' own come while those of their inputs return.  What it reads
// of forward, dispatched and hidden rows, has a slot for each chunk where it is kept (restore_strategy.h).  Else chunks
// share the slots as in inference, and so do all layers; backward restores a chunk's rows before it needs them: copies
// of dispatched rows under the chunk before, copies of hidden rows once that chunk's have been read.  Pure: the same
// options give the same program on every rank.  Source: MPMoE, section III-B (scheduler/PAPERS.md).
#pragma once

#include "scheduler/pipeline/moe_schedule.h"
#include "scheduler/pipeline/restore_strategy.h"

namespace switchyard::pipeline {

inline constexpr int kMaxMicroBatches = 64;

struct ExpertParallelOptions {
  int micro_batches = 1;         // [1, kMaxMicroBatches]
  bool shared_expert = false;    // the layer has one; it runs under the first dispatch
  bool in_turn = false;          // one dispatch at a time
  bool dispatch_first = false;   // all dispatches before the first combine; of programs that keep all rows
  bool reuses = true;            // chunks share slots; else each has its own (PMoE), of programs that keep all rows
  bool joint_gradients = false;  // weights' gradients before their chunk's combine, as where one op makes both
  Cut cut = Cut::kRows;
  bool trains = false;           // with a backward program
  RestoreStrategy restore = {};  // of programs that train
};

// REQUIRES: the options are in range.  The result is valid.
MoeSchedule BuildExpertParallel(const ExpertParallelOptions& options);

}  // namespace switchyard::pipeline
