// Builder of PPMoE's slicing: ranks with the same rows (a tensor-parallel group) hold different experts, and each takes
// by index the rows for its own; nothing is dispatched.  What comes back is one sum of all tokens' rows, or a gather of
// the chosen experts' outputs, which every rank then adds in top-k order, so that bits are one rank's.
//
// Backward has the same collectives, of gradients.  With a sum each rank has a part of the router's gradient, with a
// gather all of it.  Layers (workers/moe) run it, the simulator prices it (scheduler/simulator/).  Pure.  Source:
// Pipeline MoE, section 3.3; scheduler/PAPERS.md.
#pragma once

#include "scheduler/pipeline/moe_schedule.h"

namespace switchyard::pipeline {

struct SlicedOptions {
  bool sums = false;  // else gathers
  bool trains = false;
};

// "sliced_sum", "sliced_gather".  The result is valid.
MoeSchedule BuildSliced(const SlicedOptions& options);

}  // namespace switchyard::pipeline
