#include "proto/link/group_seat_codec.h"

#include "absl/strings/str_cat.h"
#include "proto/link/placement_codec.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {

v1::JoinGroup ToProto(const GroupSeat& seat) {
  v1::JoinGroup message;
  message.set_epoch(seat.epoch);
  message.set_rank(seat.rank);
  message.set_world(seat.world);
  message.set_store_token(seat.store_token);
  message.set_deadline_ms(seat.form_deadline_ms);
  message.set_reach(seat.reach);
  *message.mutable_placement() = ToProto(seat.placement);
  return message;
}

absl::StatusOr<GroupSeat> FromProto(const v1::JoinGroup& message) {
  GroupSeat seat;
  seat.epoch = message.epoch();
  seat.rank = message.rank();
  seat.world = message.world();
  seat.store_token = message.store_token();
  seat.form_deadline_ms = message.deadline_ms();
  seat.reach = message.reach();
  if (seat.world < 1 || seat.rank < 0 || seat.rank >= seat.world) {
    return absl::InvalidArgumentError(absl::StrCat("no seat: rank ", seat.rank, " of ", seat.world));
  }
  ASSIGN_OR_RETURN(seat.placement, FromProto(message.placement(), seat.world));
  return seat;
}

}  // namespace switchyard
