// Runs a program of a MoeSchedule, forward or backward: launches ops in list order and finishes each asynchronous one
// before the first op that needs it (or at the end), so that the ops between run under the exchange.  All ranks start
// and finish the same collectives in the same order.  Knows no tensors: the runner does the ops.
#pragma once

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/moe_schedule.h"

namespace switchyard::moe {

// Interface to what shares the network with a rank's all-to-alls (and gathers and sums of layers) and lets them go
// first.
//
// The thread that runs the layers calls, for each layer: Imminent (of a backward), then Begin before each all-to-all
// and End when it is done on this rank (several may be under way), then LayerEnd.  After an error of a layer no calls
// follow.
class AllToAllWatch {
 public:
  virtual ~AllToAllWatch() = default;
  // A layer's output is being differentiated: its first all-to-all is next.
  virtual void Imminent() = 0;
  // An all-to-all is ready and starts when this returns; an error ends the layer.
  virtual absl::Status Begin() = 0;
  virtual void End() = 0;
  // The layer's last one is done.
  virtual void LayerEnd() = 0;
};

class MicroOpRunner {
 public:
  virtual ~MicroOpRunner() = default;
  // Does a computing op; starts an asynchronous one, blocking on no peer.
  virtual absl::Status Start(const pipeline::MicroOp& op) = 0;
  // Called once for every asynchronous op that was started.
  virtual absl::Status Finish(const pipeline::MicroOp& op) = 0;
};

// Stops at the first error and returns it; the runner ends what is under way.  watch: may be null.  REQUIRES: ops of a
// valid schedule.
inline absl::Status RunSchedule(const std::vector<pipeline::MicroOp>& ops, MicroOpRunner* runner,
                                AllToAllWatch* watch = nullptr) {
  std::vector<char> under_way(ops.size(), 0);
  const auto travels = [](const pipeline::MicroOp& op) {
    return pipeline::IsCommunicating(op.kind) && op.group != pipeline::Group::kSelf;
  };
  auto left = std::count_if(ops.begin(), ops.end(), travels);
  const auto finish = [&](size_t i) -> absl::Status {
    if (!under_way[i]) return absl::OkStatus();
    under_way[i] = 0;
    RETURN_IF_ERROR(runner->Finish(ops[i]));
    if (watch == nullptr || !travels(ops[i])) return absl::OkStatus();
    watch->End();
    if (--left == 0) watch->LayerEnd();
    return absl::OkStatus();
  };
  for (size_t i = 0; i < ops.size(); ++i) {
    const pipeline::MicroOp& op = ops[i];
    for (const int dep : op.deps) RETURN_IF_ERROR(finish(static_cast<size_t>(dep)));
    if (watch != nullptr && travels(op)) RETURN_IF_ERROR(watch->Begin());
    RETURN_IF_ERROR(runner->Start(op));
    under_way[i] = pipeline::IsAsynchronous(op.kind);
  }
  for (size_t i = 0; i < ops.size(); ++i) RETURN_IF_ERROR(finish(i));
  return absl::OkStatus();
}

}  // namespace switchyard::moe
