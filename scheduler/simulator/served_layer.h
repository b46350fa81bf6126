// How long a MoE layer of a serving step takes in a number of micro-batches, by the event simulator: the program that
// its workers run, the links as they were measured when the group formed, and experts as steps show them.
//
// Routing is even and ranks have as many rows, so one rank stands for all.  Gates, shared experts, packing and that
// exchanges may take cores from products are not in it: what it finds is then tried (scheduler/batching/step_trial.h).
// Pure.
#pragma once

#include <cstdint>

#include "scheduler/fleet/group_ready.h"
#include "scheduler/placement/expert_cost.h"

namespace switchyard::simulator {

struct ServedLayer {
  int ranks = 1;
  int num_experts = 1;
  int top_k = 1;
  int64_t row_bytes = 0;         // of a row on its way to an expert
  bool adds_outputs = false;     // a rank returns one row for all of its experts
  placement::ExpertCost expert;  // of one expert, of so many rows
  fleet::LinkFit links;

  // Rows that a rank sends to the others, of `rows` of its own.
  double DispatchedRows(double rows) const;
  double ReturnedRows(double rows) const;
};

// Seconds.  rows: of each rank.  REQUIRES: links are measured, ranks divide num_experts in the mean (any numbers >= 1),
// rows >= 0, 1 <= micro_batches <= pipeline::kMaxMicroBatches.
double SecondsOfServedLayer(const ServedLayer& layer, int64_t rows, int micro_batches);

}  // namespace switchyard::simulator
