#include "scheduler/jobs/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/jobs/trainer_limits.h"

namespace switchyard::jobs {

absl::Status Validate(const LrSchedule& schedule) {
  const auto wrong = [](const char* field, double value, const char* limit) {
    return absl::InvalidArgumentError(absl::StrCat("learning rate: ", field, " is ", value, ", must be ", limit));
  };
  if (!(schedule.peak > 0) || !std::isfinite(schedule.peak)) return wrong("peak", schedule.peak, "positive and finite");
  if (schedule.peak > kMaxLearningRate) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning rate: peak is ", schedule.peak, ", must be at most ", kMaxLearningRate));
  }
  if (!(schedule.final_fraction >= 0 && schedule.final_fraction <= 1)) {
    return wrong("final_fraction", schedule.final_fraction, "in [0, 1]");
  }
  if (!(schedule.decay_fraction > 0 && schedule.decay_fraction <= 1)) {
    return wrong("decay_fraction", schedule.decay_fraction, "in (0, 1]");
  }
  if (schedule.total_steps < 1) return wrong("total_steps", static_cast<double>(schedule.total_steps), "at least 1");
  if (schedule.warmup_steps < 0 || schedule.warmup_steps > schedule.total_steps) {
    return wrong("warmup_steps", static_cast<double>(schedule.warmup_steps), "in [0, total_steps]");
  }
  return absl::OkStatus();
}

double LearningRate(const LrSchedule& schedule, int64_t step) {
  SY_CHECK_LE(int64_t{0}, step);
  const int64_t total = schedule.total_steps, warmup = schedule.warmup_steps;
  step = std::min(step, total - 1);
  if (step < warmup) return schedule.peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double floor = schedule.peak * schedule.final_fraction;
  // The part of the way from the end of warm-up, 0, to the last step, 1.
  const auto ratio = [&](int64_t from) {
    return total - 1 > from ? static_cast<double>(step - from) / static_cast<double>(total - 1 - from)
                            : 0.0;  // nothing follows warm-up, or there is one step: it is the peak's
  };
  switch (schedule.shape) {
    case LrShape::kConstant:
      return schedule.peak;
    case LrShape::kLinear:
      return schedule.peak + (floor - schedule.peak) * ratio(warmup);
    case LrShape::kCosine:
      return floor + 0.5 * (1 + std::cos(std::numbers::pi * ratio(warmup))) * (schedule.peak - floor);
    case LrShape::kWsd: {
      const auto stable = static_cast<int64_t>(std::floor((1 - schedule.decay_fraction) * static_cast<double>(total)));
      const int64_t from = std::max(stable, warmup);
      if (step < from) return schedule.peak;
      return floor + (1 - std::sqrt(ratio(from))) * (schedule.peak - floor);
    }
  }
  return schedule.peak;
}

}  // namespace switchyard::jobs
