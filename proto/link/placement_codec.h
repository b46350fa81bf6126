// Where a group's experts are, and stages of moves, as messages of the worker link, and back.
//
// Sizes are those of a message: bounded by its bytes, never by a number in it.  Whether the values fit the model the
// worker checks (CheckGroupPlacement, CheckPlacementStage).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/placement/background/group_placement.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard {

v1::GroupPlacement ToProto(const GroupPlacement& placement);
// InvalidArgument: layers that are not world x slots.
absl::StatusOr<GroupPlacement> FromProto(const v1::GroupPlacement& message, int world);

v1::PreparePlacement ToProto(const PlacementStage& stage, int64_t group_epoch);
// InvalidArgument: a move of no known kind, columns that differ in length.
absl::StatusOr<PlacementStage> FromProto(const v1::PreparePlacement& message);

}  // namespace switchyard
