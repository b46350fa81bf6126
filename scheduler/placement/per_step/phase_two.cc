#include "scheduler/placement/per_step/phase_two.h"

#include <algorithm>

#include "scheduler/base/check.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {

MoveChoice ChooseMove(const MoveQuestion& question) {
  SY_CHECK_GE(question.num_devices, 1);
  MoveChoice choice;
  const __int128 busiest = static_cast<__int128>(question.present_ps) * question.num_devices * popularity::kRow;
  choice.reason = MoveReason::kEvenEnough;
  if (busiest <= static_cast<__int128>(question.total_ps) * (popularity::kRow + question.even_enough)) return choice;
  choice.reason = MoveReason::kNoBetter;
  if (question.candidate_ps >= question.present_ps) return choice;
  choice.saved_ps = question.present_ps - question.candidate_ps;
  choice.delayed_ps = std::max<int64_t>(0, question.delayed_ps);
  choice.reason = choice.saved_ps > choice.delayed_ps ? MoveReason::kPays : MoveReason::kTooDear;
  return choice;
}

}  // namespace switchyard::placement
