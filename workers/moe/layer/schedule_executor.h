// Runs a MoeSchedule: launches ops in list order and finishes each communicating one when the first op that needs it
// comes up (or at the end).  So what stands between start and finish in the list runs under the exchange.
//
// Order is a function of the program alone: all ranks start and finish the same collectives in the same order.
// Knows no tensors: what an op does is the runner's.
#pragma once

#include "absl/status/status.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "workers/moe/layer/all_to_all_watch.h"

namespace switchyard::moe {

class MicroOpRunner {
 public:
  virtual ~MicroOpRunner() = default;
  // Does a computing op; starts a communicating one, blocking on no peer.
  virtual absl::Status Start(const pipeline::MicroOp& op) = 0;
  // Called once for every communicating op that was started.
  virtual absl::Status Finish(const pipeline::MicroOp& op) = 0;
};

// Stops at the first error and returns it; what is under way then is left to the runner.  watch: is told of
// communicating ops; null: nobody is.  REQUIRES: a valid schedule.
absl::Status RunSchedule(const pipeline::MoeSchedule& schedule, MicroOpRunner* runner, AllToAllWatch* watch = nullptr);

}  // namespace switchyard::moe
