// Interface through which a worker's link carries out the migrations of a residency plan
// (scheduler/placement/background/residency_epoch.h).
//
// Used by the thread that runs the worker's steps.  A migration lives from PreparePlacement to DropPlacement, or
// through the step whose placement_epoch names it, which puts it in use, to ReleasePlacement; and never longer than the
// group.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/placement/background/group_placement.h"

namespace switchyard::worker {

class PlacementHost {
 public:
  virtual ~PlacementHost() = default;

  // Starts the copies of what arrives on this rank; blocks for 2 ms at most.
  // InvalidArgument, FailedPrecondition: a migration that cannot be, or while another one is there.
  virtual absl::Status PreparePlacement(placement::Migration migration) = 0;
  // Whether the copies have arrived.  DataLoss: what arrived is not what was sent.  Never blocks.
  virtual absl::StatusOr<bool> PlacementReady() = 0;
  // Forgets what was prepared; of another epoch than the prepared one it does nothing.
  virtual void DropPlacement(int64_t epoch) = 0;
  // Gives back what departed with the migration that is in use.  FailedPrecondition: it is not.
  virtual absl::Status ReleasePlacement(int64_t epoch) = 0;
};

}  // namespace switchyard::worker
