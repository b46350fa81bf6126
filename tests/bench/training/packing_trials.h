// Which packing of experts a job's controller chooses for a step's shape: steps are run and measured as a job's are,
// but fewer of them, whose means decide.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/jobs/expert_packing.h"
#include "tests/bench/training/emulated_step.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::bench {

struct PackingTrials {
  std::vector<jobs::PackingDecision> decisions;  // the last one's `to` is what it stays with
  std::unique_ptr<EmulatedStep> step;            // with that
};

// make: the step with so many replicas of every expert.  all: every rank; each makes this call at once.  Every packing
// is tried for two steps (the first for three), of which all but the first count.  Errors: of make and of the steps.
absl::StatusOr<PackingTrials> TryPackings(
    const std::function<absl::StatusOr<std::unique_ptr<EmulatedStep>>(int packing)>& make, comm::Communicator* all,
    absl::Duration patience);

}  // namespace switchyard::bench
