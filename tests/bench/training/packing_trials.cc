#include "tests/bench/training/packing_trials.h"

#include <utility>

#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/packing/expert_packer.h"

namespace switchyard::bench {
namespace {

// The first of all, and the first with another packing, are for messages' buffers to grow.  A step is emulated alike
// each time, so a few are enough, and means are compared (PackingTimes::most_step_ns is not known).
constexpr int64_t kEverySteps = 2;
constexpr int64_t kFirstStep = 3;

// An all-to-all takes what it is under way, as in the paper, whether or not experts' products are beside it.
jobs::PackingTimes TimesOf(const StepTimes& times) {
  return {.experts_ns = absl::ToInt64Nanoseconds(times.forward_experts),
          .all_to_all_ns = absl::ToInt64Nanoseconds(times.forward_all_to_all),
          .micro_ops = times.forward_expert_ops,
          .step_ns = absl::ToInt64Nanoseconds(times.end - times.begin),
          .sums_ns = absl::ToInt64Nanoseconds(times.end - times.backward_end),
          .steps = 1};
}

}  // namespace

absl::StatusOr<PackingTrials> TryPackings(
    const std::function<absl::StatusOr<std::unique_ptr<EmulatedStep>>(int packing)>& make, comm::Communicator* all,
    absl::Duration patience) {
  jobs::PackingController controller({.world = all->world(), .first_step = kFirstStep, .every_steps = kEverySteps});
  PackingTrials trials;
  jobs::PackingTimes measured;
  for (int64_t step = 1; !controller.finalized(); ++step) {
    if (trials.step == nullptr || trials.step->packing() != controller.packing()) {
      ASSIGN_OR_RETURN(trials.step, make(controller.packing()));
    }
    ASSIGN_OR_RETURN(const StepTimes times, trials.step->Run(MonotonicNow() + patience));
    if (controller.Measures(step)) measured += TimesOf(times);
    if (!controller.Decides(step)) continue;
    ASSIGN_OR_RETURN(const jobs::PackingTimes sums, train::SumTimes(measured, all, MonotonicNow() + patience));
    controller.Adopt(controller.Propose(step, sums));
    measured = {};
  }
  trials.decisions = controller.decisions();
  if (trials.step->packing() != controller.packing()) {
    ASSIGN_OR_RETURN(trials.step, make(controller.packing()));
  }
  return trials;
}

}  // namespace switchyard::bench
