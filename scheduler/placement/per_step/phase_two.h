// Phase 2: the gate has run; does the placement stay?
//
// Rows are split by the actual counts anyway (split.h), so weights move only where even the best split is too uneven
// and a move saves more than its copies delay.  (paper_policy.h has the paper's rule.)  Pure, integers (picoseconds)
// only: every rank decides alike.  Does not make placements.
#pragma once

#include <cstdint>

namespace switchyard::placement {

// "Move to a placement whose busiest device is done after `candidate_ps`?"
struct MoveQuestion {
  int64_t total_ps = 0;  // of all devices together, no expert's rows cut: what the best split takes at least
  int num_devices = 1;
  int64_t present_ps = 0;    // until the busiest device is done, by the best split
  int64_t candidate_ps = 0;  // likewise, if nothing had to be copied
  int64_t delayed_ps = 0;    // by copies that nothing hides
  int64_t even_enough = 0;   // share of the mean, in 1 / kRow, by which the busiest may be above it
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
  int64_t saved_ps = 0;
  int64_t delayed_ps = 0;  // by copies that nothing hides
  bool Moves() const { return reason == MoveReason::kPays; }
};

// Asked before a candidate is made, with the best that any could be, it says whether one could pay.
MoveChoice ChooseMove(const MoveQuestion& question);

}  // namespace switchyard::placement
