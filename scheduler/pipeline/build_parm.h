// Builders of Parm's programs for experts in shards beside ranks with the same input, and of the baseline that it is
// compared with.
//
// P = N_EP · N_ESP ranks hold N_ESP shards of each expert; N_MP ranks have the same rows (Group::kCopies).
//   baseline  DeepSpeed-MoE: gather rows among shards, all-to-all among experts, experts, sum among shards, all-to-all;
//             each of the N_MP copies does all of it
//   S1        copies split the rows before the gate; one all-to-all over all ranks each way; gather among copies
//   S2        copies split the gated rows, which they choose alike; the all-to-all back adds what shards made of a row.
//             It goes in `parts` phases, each phase's rows gathered among copies while the next one travels (SAA); in
//             one part it is one after the other (AAS).  The gates' weights come last.
// Backward has the same collectives in the same order (the gradient of a gather is a part, that of a part a gather, and
// that of a sum with shards a sum of their inputs' gradients).  N_MP = 1 and N_ESP = 1 are programs like others.
//
// Sums over ranks that a caller owes: a weight's gradient is each rank's own part, but for the baseline's experts and,
// except in S1, the router, whose copies all compute the whole.  With a capacity S1 drops other choices than S2, as its
// copies are ranks with rows of their own.  Layers (workers/moe) run them, the simulator prices them
// (scheduler/simulator/).  Pure.  Source: Parm, section IV; scheduler/PAPERS.md.
#pragma once

#include "scheduler/pipeline/moe_schedule.h"

namespace switchyard::pipeline {

enum class ParmKind : uint8_t { kBaseline, kS1, kS2 };

struct ParmOptions {
  ParmKind kind = ParmKind::kBaseline;
  int parts = 1;  // of S2's way back, [1, kMaxParts]: as many as there are ranks in the paper
  bool trains = false;
};
inline constexpr int kMaxParts = 1024;

// "deepspeed_moe", "parm_s1", "parm_s2".  REQUIRES: the options are in range.  The result is valid.
MoeSchedule BuildParm(const ParmOptions& options);

}  // namespace switchyard::pipeline
