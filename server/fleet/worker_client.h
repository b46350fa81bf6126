// Interface through which the engine commands one worker.  Plain values; link_client.h implements it over gRPC, tests
// use a fake.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/batching/step.h"
#include "scheduler/fleet/rank_assignment.h"
#include "scheduler/fleet/worker_info.h"

namespace switchyard::server {

using WorkerId = int64_t;  // drawn by the server for each link, never reused

// Commands to a worker.  Thread-safe; never blocks: messages queue for the link (bounded by the plans in flight); a
// broken link drops them, and OnLinkLost follows.
class WorkerClient {
 public:
  virtual ~WorkerClient() = default;
  virtual void Join(const fleet::RankAssignment& assignment) = 0;
  // `limit`: how long the rank may wait for the others.
  virtual void Execute(const batching::StepPlan& plan, int rank, absl::Duration limit) = 0;
  // The masks of a step whose plan was sent.
  virtual void SendMasks(const batching::StepMasks& masks, int rank) = 0;
  virtual void AbortGroup(int64_t epoch, const std::string& reason) = 0;
  // Asks for a part of the worker's profile (answered by OnProfilePart).
  virtual void SendProfile(int64_t group_epoch, int64_t request, int64_t offset) = 0;
  // Ends the link; the worker receives `status`.  OnLinkLost follows.
  virtual void Close(const absl::Status& status) = 0;
};

}  // namespace switchyard::server
