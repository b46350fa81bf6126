// The learning rate of a step: warm-up, then cosine, linear, constant, or warm-up-stable-decay.  Pure.
//
// Sources: llm.c (schedulers.h) for the four shapes; here the last step has the final rate, there the one behind it
// would.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace switchyard::jobs {

enum class LrShape : uint8_t { kCosine, kLinear, kConstant, kWsd };

struct LrSchedule {
  LrShape shape = LrShape::kCosine;
  double peak = 3e-4;           // above 0, at most kMaxLearningRate (trainer_limits.h)
  double final_fraction = 0.1;  // of the peak, at the last step; in [0, 1].  Not of kConstant.
  int64_t warmup_steps = 0;     // step s < warmup_steps has peak · (s + 1) / warmup_steps
  int64_t total_steps = 1;      // of the job
  double decay_fraction = 0.2;  // of kWsd: the last part of all steps, in which it falls by 1 - sqrt; in (0, 1]
  bool operator==(const LrSchedule& other) const = default;
};

// InvalidArgument with field, limit and value.
absl::Status Validate(const LrSchedule& schedule);
// The rate of step 0, 1, …; from total_steps on it is the last one's.  REQUIRES: a valid schedule, step >= 0.
double LearningRate(const LrSchedule& schedule, int64_t step);

}  // namespace switchyard::jobs
