#include "proto/link/group_seat_codec.h"

#include "absl/strings/str_cat.h"
#include "proto/link/placement_codec.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::link {

v1::JoinGroup ToProto(const fleet::RankAssignment& assignment) {
  v1::JoinGroup message;
  message.set_epoch(assignment.epoch);
  message.set_rank(assignment.rank);
  message.set_world(assignment.world);
  message.set_store_token(assignment.store_token);
  message.set_deadline_ms(assignment.form_deadline_ms);
  message.set_reach(assignment.reach);
  *message.mutable_placement() = ToProto(assignment.placement);
  return message;
}

absl::StatusOr<fleet::RankAssignment> FromProto(const v1::JoinGroup& message) {
  fleet::RankAssignment assignment;
  assignment.epoch = message.epoch();
  assignment.rank = message.rank();
  assignment.world = message.world();
  assignment.store_token = message.store_token();
  assignment.form_deadline_ms = message.deadline_ms();
  assignment.reach = message.reach();
  if (assignment.world < 1 || assignment.rank < 0 || assignment.rank >= assignment.world) {
    return absl::InvalidArgumentError(absl::StrCat("no seat: rank ", assignment.rank, " of ", assignment.world));
  }
  ASSIGN_OR_RETURN(assignment.placement, FromProto(message.placement(), assignment.world));
  return assignment;
}

}  // namespace switchyard::link
