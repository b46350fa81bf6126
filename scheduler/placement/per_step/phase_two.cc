#include "scheduler/placement/per_step/phase_two.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "scheduler/base/check.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {
namespace {

int64_t Picoseconds(double seconds) { return std::llround(std::clamp(seconds, 0.0, 1e5) * 1e12); }

int64_t Clamped(__int128 ps) {
  constexpr __int128 kMost = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::clamp<__int128>(ps, -kMost, kMost));
}

}  // namespace

MoveCosts CostsOf(const CostModel& model) {
  const double copy_seconds = model.copy_bytes_per_s > 0 ? model.expert_bytes / model.copy_bytes_per_s : 0;
  return {.copy_ps = Picoseconds(copy_seconds),
          .row_ps = Picoseconds(model.seconds_per_row),
          .layer_ps = Picoseconds(model.layer_seconds)};
}

MoveChoice ChooseMove(const MoveQuestion& question, const MoveCosts& costs) {
  SY_CHECK_GE(question.unit, 1);
  SY_CHECK_GE(question.num_devices, 1);
  MoveChoice choice;
  const __int128 busiest = static_cast<__int128>(question.present_busiest) * question.num_devices * popularity::kRow;
  choice.reason = MoveReason::kEvenEnough;
  if (busiest <= static_cast<__int128>(question.total_rows) * (popularity::kRow + question.even_enough)) return choice;
  choice.reason = MoveReason::kNoBetter;
  if (question.candidate_busiest >= question.present_busiest) return choice;
  const int64_t relieved = question.present_busiest - question.candidate_busiest;
  choice.saved_ps = Clamped(static_cast<__int128>(relieved) * costs.row_ps / question.unit * question.horizon);
  const __int128 hidden = static_cast<__int128>(question.layers_ahead) * costs.layer_ps;
  choice.delayed_ps = Clamped(std::max<__int128>(0, static_cast<__int128>(question.copies) * costs.copy_ps - hidden));
  choice.reason = choice.saved_ps > choice.delayed_ps ? MoveReason::kPays : MoveReason::kTooDear;
  return choice;
}

}  // namespace switchyard::placement
