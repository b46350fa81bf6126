// Phase 2: the gate has run; does the placement that followed the estimate stay?
//
// Rows are split by the actual counts anyway (split.h), so weights move only where even the best split is too uneven
// and a move saves more than its copies delay.  (paper_policy.h has the paper's rule.)  Pure, integers (picoseconds)
// only: every rank decides alike.  Does not make placements.
#pragma once

#include <cstdint>

#include "scheduler/placement/per_step/move_costs.h"

namespace switchyard::placement {

// One layer's costs as one process measured them.
struct CostModel {
  double expert_bytes = 0;      // weights of one expert
  double copy_bytes_per_s = 0;  // host memory to a slot, per device
  double seconds_per_row = 0;   // compute and exchange of one row
  double layer_seconds = 0;     // of one layer beside its copies: what a copy for the next layer hides behind
};

// Rates of 0 count as free.
MoveCosts CostsOf(const CostModel& model);

// "Move to a placement whose busiest device has `candidate_busiest` rows?"  Rows in units of 1 / unit row.
struct MoveQuestion {
  int64_t unit = 1;        // kRow for estimates, 1 for counts
  int64_t total_rows = 0;  // of all devices
  int num_devices = 1;
  int64_t present_busiest = 0;  // by the best split
  int64_t candidate_busiest = 0;
  int copies = 0;           // of the device that has to copy the most
  int layers_ahead = 0;     // 0: needed now; products that may hide the copies are not counted on
  int horizon = 1;          // batches for which the move is expected to help
  int64_t even_enough = 0;  // share of the mean, in 1 / kRow, by which the busiest may be above it
};

enum class MoveReason {
  kNotAsked,    // nothing moves in this mode, or everything that should does, whatever it costs
  kEvenEnough,  // the present split is
  kNoBetter,    // the candidate does not relieve the busiest
  kTooDear,     // what it saves is less than what its copies delay
  kPays,
};

struct MoveChoice {
  MoveReason reason = MoveReason::kNotAsked;
  int64_t saved_ps = 0;    // over the horizon
  int64_t delayed_ps = 0;  // by copies that nothing hides
  bool Moves() const { return reason == MoveReason::kPays; }
};

// Asked before a candidate is made, with the mean as its busiest and one copy, it says whether any could pay.
MoveChoice ChooseMove(const MoveQuestion& question, const MoveCosts& costs);

}  // namespace switchyard::placement
