// What the server says of expert placement, as plain values.  The mirror of server/api/placement_convert.h.
//
// Sizes are those of a message: bounded by its bytes, never by a number in it.  Whether the values fit the model the
// worker checks (CheckGroupPlacement, CheckPlacementStage).
#pragma once

#include "absl/status/statusor.h"
#include "scheduler/placement/background/group_placement.h"
#include "scheduler/placement/placement_settings.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard {

// InvalidArgument: no mode of that name, or settings that contradict each other.
absl::StatusOr<PlacementSettings> FromProto(const v1::PlacementOptions& message);
// InvalidArgument: layers that are not world x slots.
absl::StatusOr<GroupPlacement> FromProto(const v1::GroupPlacement& message, int world);
// InvalidArgument: a move of no known kind, columns that differ in length.
absl::StatusOr<PlacementStage> FromProto(const v1::PreparePlacement& message);

}  // namespace switchyard
