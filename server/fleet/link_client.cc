#include "server/fleet/link_client.h"

#include <utility>

#include "proto/link/fleet_codec.h"
#include "proto/link/placement_codec.h"
#include "proto/link/step_plan_codec.h"
#include "proto/link/training_assignment_codec.h"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"

namespace switchyard::server {

void LinkClient::Join(const fleet::RankAssignment& assignment) {
  v1::LinkResponse message;
  *message.mutable_join_group() = link::ToProto(assignment);
  Send(message);
}

void LinkClient::Execute(const batching::StepPlan& plan, int rank, absl::Duration limit) {
  v1::LinkResponse message;
  *message.mutable_step_plan() = link::ToProto(plan, rank, limit);
  Send(message);
}

void LinkClient::SendMasks(const batching::StepMasks& masks, int rank) {
  v1::LinkResponse message;
  *message.mutable_step_masks() = link::ToProto(masks, rank);
  Send(message);
}

void LinkClient::AbortGroup(int64_t epoch, const std::string& reason) { SendAbort(epoch, reason, /*training=*/false); }

void LinkClient::AbortTraining(int64_t epoch, const std::string& reason) {
  SendAbort(epoch, reason, /*training=*/true);
}

void LinkClient::SendAbort(int64_t epoch, const std::string& reason, bool training) {
  v1::LinkResponse message;
  message.mutable_abort_group()->set_epoch(epoch);
  message.mutable_abort_group()->set_reason(reason);
  message.mutable_abort_group()->set_training(training);
  Send(message);
}

void LinkClient::SendProfile(int64_t group_epoch, int64_t request, int64_t offset) {
  v1::LinkResponse message;
  message.mutable_send_profile()->set_group_epoch(group_epoch);
  message.mutable_send_profile()->set_request(request);
  message.mutable_send_profile()->set_offset(offset);
  Send(message);
}

void LinkClient::Start(const jobs::TrainingAssignment& assignment) {
  v1::LinkResponse message;
  *message.mutable_start_training() = link::ToProto(assignment);
  Send(message);
}

void LinkClient::StopTraining(int64_t epoch, jobs::StopKind kind) {
  v1::LinkResponse message;
  message.mutable_stop_training()->set_epoch(epoch);
  message.mutable_stop_training()->set_kind(link::ToProto(kind));
  Send(message);
}

void LinkClient::Close(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (reactor_ == nullptr || closed_) return;
  closed_ = true;
  reactor_->Finish(rpc::ToGrpcStatus(status, ""));
}

void LinkClient::Send(const v1::LinkResponse& message) {
  grpc::ByteBuffer bytes = rpc::SerializeRaw(message);
  absl::MutexLock lock(&mu_);
  if (reactor_ == nullptr || closed_) return;
  outbox_.push_back(std::move(bytes));
  if (outbox_.size() == 1) reactor_->StartWrite(&outbox_.front());
}

void LinkClient::WriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  outbox_.pop_front();
  if (ok && !closed_ && !outbox_.empty()) reactor_->StartWrite(&outbox_.front());
}

void LinkClient::Detach() {
  absl::MutexLock lock(&mu_);
  reactor_ = nullptr;
}

}  // namespace switchyard::server
