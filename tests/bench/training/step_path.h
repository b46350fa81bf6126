// A step's bytes on its links, as what its critical path is found from.  Pure.
#pragma once

#include "absl/time/time.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "tests/bench/training/critical_path.h"
#include "tests/bench/training/links.h"
#include "tests/bench/training/step_shape.h"

namespace switchyard::bench {

struct RankLayout {
  int world = 1;
  int packing = 1;  // replicas of every expert
};

// schedule: borrowed, and so kept.  An expert per rank, before packing.
PathInput PathOfStep(const StepShape& shape, const Links& links, const pipeline::MoeSchedule& schedule,
                     const RankLayout& ranks);

// The bytes of all sums on the wire.
absl::Duration AllSums(const PathInput& input);

}  // namespace switchyard::bench
