// One worker, as the engine sees it: what it can be told.  Plain values; link_client.h is the gRPC form, tests use a
// fake.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/batching/step.h"
#include "scheduler/fleet/rank_assignment.h"
#include "scheduler/fleet/worker_info.h"
#include "scheduler/placement/background/group_placement.h"

namespace switchyard::server {

using WorkerId = int64_t;  // drawn by the server for each link, never reused

// Commands to a worker.  Thread-safe, never blocks: messages queue for the link (bounded by the plans in flight); those
// of a broken link are dropped, OnLost tells.
class WorkerClient {
 public:
  virtual ~WorkerClient() = default;
  virtual void Join(const fleet::RankAssignment& assignment) = 0;
  // `limit`: longest that the rank waits for the others.
  virtual void Execute(const batching::StepPlan& plan, int rank, absl::Duration limit) = 0;
  virtual void AbortGroup(int64_t epoch, const std::string& reason) = 0;
  // A placement that comes: copy what arrives (OnPlacementPrepared answers); forget it; give back what departed
  // (OnPlacementReleased answers).
  virtual void PreparePlacement(const placement::Migration& migration, int64_t group_epoch) = 0;
  virtual void DropPlacement(int64_t group_epoch, int64_t placement_epoch) = 0;
  virtual void ReleasePlacement(int64_t group_epoch, int64_t placement_epoch) = 0;
  // A part of what it has learned (OnProfilePart answers).
  virtual void SendProfile(int64_t group_epoch, int64_t request, int64_t offset) = 0;
  // Ends the link: the worker sees `status`.  OnLost follows.
  virtual void Close(const absl::Status& status) = 0;
};

}  // namespace switchyard::server
