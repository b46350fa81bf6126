#include "server/api/profile_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "scheduler/base/status_macros.h"
#include "server/clock.h"
#include "server/engine/profile_merge.h"

namespace switchyard::server {

void ProfileCall::Start(const grpc::ByteBuffer& request) {
  v1::GetProfileRequest message;
  const absl::Status status = [&] {
    RETURN_IF_ERROR(rpc::ParseRaw(request, &message));
    std::shared_ptr<const ServedModel> model;
    RETURN_IF_ERROR(request_context_->Args(*context_, &model).status());
    RETURN_IF_ERROR(CheckModelName(message.model(), *model));
    if (model->num_moe_layers == 0) {
      return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::NO_EXPERTS,
                            absl::StrCat("model ", model->name, " has no MoE layers"));
    }
    model_ = model->name;
    weights_hash_ = model->weights_hash;
    return CheckProfileRequest(message, weights_hash_);
  }();
  if (!status.ok()) return End(status);
  request_context_->engine->CollectProfile({.on_progress =
                                                [this](const ProfileCollector::Progress& progress) {
                                                  absl::MutexLock lock(&mu_);
                                                  progress_.emplace();
                                                  progress_->set_workers(progress.num_ranks);
                                                  progress_->set_workers_done(progress.rank);
                                                  progress_->set_collected_bytes(progress.bytes);
                                                  Pump();
                                                },
                                            .done =
                                                [this](absl::StatusOr<std::vector<std::string>> bundles) {
                                                  if (!bundles.ok()) return End(bundles.status());
                                                  // Off the engine's thread.
                                                  request_context_->pool->Post(
                                                      {.client = FrontClientOfPeer(context_->peer()),
                                                       .run = [this, bundles = *std::move(bundles)] { Merge(bundles); },
                                                       .refuse = [this](const absl::Status& why) { End(why); }});
                                                }});
}

void ProfileCall::Merge(const std::vector<std::string>& bundles) { End(MergeProfiles(bundles, weights_hash_)); }

void ProfileCall::End(absl::StatusOr<std::string> profile) {
  absl::MutexLock lock(&mu_);
  profile_ = std::move(profile);
  Pump();
}

void ProfileCall::Pump() {
  if (writing_ || finished_) return;
  if (!profile_.has_value()) {
    if (progress_.has_value() && !broken_) Write(*std::exchange(progress_, std::nullopt));
    return;
  }
  if (broken_) return FinishWith(absl::CancelledError("the client is gone"));
  if (!profile_->ok()) return FinishWith(profile_->status());
  const std::string& bytes = **profile_;
  if (sent_ == bytes.size()) return FinishWith(absl::OkStatus());
  v1::GetProfileResponse message;
  message.set_model(model_);
  message.set_weights_hash(weights_hash_);
  message.set_total_bytes(static_cast<int64_t>(bytes.size()));
  message.set_data(bytes.substr(sent_, kPartBytes));
  sent_ += message.data().size();
  Write(message);
}

void ProfileCall::Write(const v1::GetProfileResponse& message) {
  buffer_ = rpc::SerializeRaw(message);
  writing_ = true;
  since_ = MonotonicNow();
  CheckAt(since_ + request_context_->config->slow_client_timeout);
  StartWrite(&buffer_);
}

void ProfileCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  broken_ |= !ok;
  Pump();
}

void ProfileCall::FinishWith(const absl::Status& status) {
  finished_ = true;
  since_ = MonotonicNow();
  CheckAt(since_ + request_context_->config->unread_end_timeout);
  if (!status.ok()) request_context_->metrics->request_error(absl::StatusCodeToString(status.code())).Increment();
  Finish(status.ok() ? grpc::Status::OK : OnTheWire(status, "", context_));
}

void ProfileCall::CheckTime(absl::Time now) {
  absl::MutexLock lock(&mu_);
  const absl::Duration limit =
      finished_ ? request_context_->config->unread_end_timeout : request_context_->config->slow_client_timeout;
  if (!writing_ && !finished_) return CheckAt(absl::InfiniteFuture());  // Write says when
  if (now - since_ < limit) return CheckAt(since_ + limit);
  CheckAt(absl::InfiniteFuture());
  context_->TryCancel();
}

void ProfileCall::OnDone() {
  // Whoever called Finish still held the lock.
  mu_.Lock();
  mu_.Unlock();
  request_context_->open_calls.Remove(this);
  delete this;
}

}  // namespace switchyard::server
