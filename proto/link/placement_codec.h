// Where a group's experts are, and stages of moves, as messages of the worker link, and back.
//
// Sizes are those of a message: bounded by its bytes, never by a number in it.  Whether the values fit the model the
// worker checks (CheckGroupPlacement, CheckMigration).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/placement/background/group_placement.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

v1::GroupPlacement ToProto(const placement::GroupPlacement& placement);
// InvalidArgument: layers that are not world x slots.
absl::StatusOr<placement::GroupPlacement> FromProto(const v1::GroupPlacement& message, int world);

v1::PreparePlacement ToProto(const placement::Migration& stage, int64_t group_epoch);
// InvalidArgument: a move of no known kind, columns that differ in length.
absl::StatusOr<placement::Migration> FromProto(const v1::PreparePlacement& message);

}  // namespace switchyard::link
