// A worker's seat in a serving group as a message of the worker link, and back.
#pragma once

#include "absl/status/statusor.h"
#include "scheduler/fleet/group_seat.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard {

v1::JoinGroup ToProto(const GroupSeat& seat);
// InvalidArgument: no seat of a group, or places of another group's shape.
absl::StatusOr<GroupSeat> FromProto(const v1::JoinGroup& message);

}  // namespace switchyard
