// Names of a program's ops, and what is under way when, as text.
#pragma once

#include <string>
#include <vector>

#include "scheduler/pipeline/moe_schedule.h"

namespace switchyard::pipeline {

// Gate G, dispatch S, experts C, shared expert H, combine R (the letters of scheduler/PAPERS.md), weights W, all-gather
// AG, all-reduce AR, recompute A (again), save and restore M with i or h of input or hidden rows; then the chunk where
// rows are cut, its part where it is one of several, and ' of gradients: "S0", "R1'", "Mh0", "R0.3".
std::string OpName(const MicroOp& op);

// A column for each op, in launch order; an asynchronous one reaches to the column before which it is finished.
// Copies have lines of their own.  Two chunks of inference:
//   compute   G        C0    C1
//   exchange     S0---    R0------
//   exchange        S1------    R1
std::string Timeline(const std::vector<MicroOp>& ops);

}  // namespace switchyard::pipeline
