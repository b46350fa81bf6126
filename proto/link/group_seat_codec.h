// A worker's assignment in a serving group as a message of the worker link, and back.
#pragma once

#include "absl/status/statusor.h"
#include "scheduler/fleet/group_seat.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

v1::JoinGroup ToProto(const fleet::RankAssignment& assignment);
// InvalidArgument: no assignment of a group, or places of another group's shape.
absl::StatusOr<fleet::RankAssignment> FromProto(const v1::JoinGroup& message);

}  // namespace switchyard::link
