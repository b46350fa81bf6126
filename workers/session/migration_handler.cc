#include "workers/session/migration_handler.h"

#include <string>
#include <utility>

#include "proto/link/placement_codec.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::worker {

void MigrationHandler::Enter(int64_t group_epoch) {
  group_epoch_ = group_epoch;
  preparing_ = 0;
}

void MigrationHandler::Answer(int64_t placement_epoch, const absl::Status& status) {
  if (!status.ok()) LogWarn("placement ", placement_epoch, " cannot be prepared: ", status.message());
  v1::LinkRequest answer;
  answer.mutable_placement_prepared()->set_group_epoch(group_epoch_);
  answer.mutable_placement_prepared()->set_placement_epoch(placement_epoch);
  answer.mutable_placement_prepared()->set_error(std::string(status.message()));
  send_(std::move(answer));
}

void MigrationHandler::Prepare(const v1::PreparePlacement& message) {
  if (group_epoch_ == 0 || message.group_epoch() != group_epoch_) return;
  const int64_t epoch = message.placement_epoch();
  const absl::Status started = [&] {
    ASSIGN_OR_RETURN(placement::Migration migration, link::FromProto(message));
    return host_->PreparePlacement(std::move(migration));
  }();
  if (!started.ok()) return Answer(epoch, started);
  preparing_ = epoch;
  Poll();
}

void MigrationHandler::Poll() {
  if (preparing_ == 0) return;
  const absl::StatusOr<bool> ready = host_->PlacementReady();
  if (ready.ok() && !*ready) return;
  Answer(std::exchange(preparing_, 0), ready.status());
}

void MigrationHandler::Drop(const v1::DropPlacement& message) {
  if (group_epoch_ == 0 || message.group_epoch() != group_epoch_) return;
  if (preparing_ == message.placement_epoch()) preparing_ = 0;
  host_->DropPlacement(message.placement_epoch());
}

absl::Status MigrationHandler::Release(const v1::ReleasePlacement& message) {
  if (group_epoch_ == 0 || message.group_epoch() != group_epoch_) return absl::OkStatus();
  RETURN_IF_ERROR(host_->ReleasePlacement(message.placement_epoch()));
  v1::LinkRequest answer;
  answer.mutable_placement_released()->set_group_epoch(group_epoch_);
  answer.mutable_placement_released()->set_placement_epoch(message.placement_epoch());
  send_(std::move(answer));
  return absl::OkStatus();
}

}  // namespace switchyard::worker
