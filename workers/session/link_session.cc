#include "workers/session/link_session.h"

#include <utility>

#include "grpcpp/create_channel.h"

namespace switchyard::worker {

std::shared_ptr<grpc::Channel> ConnectToServer(const std::string& server,
                                               const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1000);
  // Long enough for a server that stands still for some seconds (it forgives itself, too), or works through a flood on
  // few cores: a link that ends ends all that its worker serves.  The server finds a worker that is gone by its
  // heartbeats, much sooner.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 29000);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetMaxReceiveMessageSize(256 << 20);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // not even for loopback
  return grpc::CreateCustomChannel(server, credentials, args);
}

LinkSession::LinkSession(std::shared_ptr<grpc::Channel> channel, LinkRole* role)
    : channel_(channel), stub_(v1::WorkerService::NewStub(channel)), role_(role) {}

void LinkSession::Start() {
  stub_->async()->Link(&context_, this);
  AddHold();  // messages are sent from outside of reactions
  StartRead(&response_);
  StartCall();
}

bool LinkSession::Send(v1::LinkRequest message) {
  absl::MutexLock lock(&mu_);
  if (closing_) return false;
  if (outbox_.size() >= kMostWaiting && TakesPlace(message)) return true;
  outbox_.push_back(std::move(message));
  if (outbox_.size() == 1) StartWrite(&outbox_.front());
  return true;
}

// The front one is being written.
bool LinkSession::TakesPlace(const v1::LinkRequest& message) {
  if (!message.has_heartbeat() && !message.has_load_progress() && !message.has_training_step() &&
      !message.has_training_note()) {
    return false;
  }
  for (size_t i = outbox_.size() - 1; i > 0; --i) {
    if (outbox_[i].message_case() != message.message_case()) continue;
    outbox_[i] = message;
    return true;
  }
  return false;
}

void LinkSession::Close() {
  {
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    context_.TryCancel();
    Release();
  }
  FreeWorker();
}

bool LinkSession::Pop(v1::LinkResponse* command, absl::Duration patience) {
  absl::MutexLock lock(&mu_);
  const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return closing_ || !commands_.empty(); };
  if (!mu_.AwaitWithTimeout(absl::Condition(&wanted), patience)) {
    command->Clear();
    return true;
  }
  if (closing_) return false;
  *command = std::move(commands_.front());
  commands_.pop_front();
  return true;
}

grpc::Status LinkSession::WaitDone() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&done_));
  return status_;
}

void LinkSession::OnReadDone(bool ok) {
  if (!ok) {
    {
      absl::MutexLock lock(&mu_);
      Release();
    }
    return FreeWorker();
  }
  if (response_.has_abort_group()) {
    // At once, not in the queue: the worker's thread may be waiting for a peer that is gone.
    const v1::AbortGroup& abort = response_.abort_group();
    abort.training() ? role_->AbortTraining(abort.epoch(), abort.reason())
                     : role_->Abort(abort.epoch(), abort.reason());
  } else {
    role_->Arrived(response_);
    absl::MutexLock lock(&mu_);
    if (!response_.has_step_masks()) commands_.push_back(response_);
  }
  StartRead(&response_);
}

void LinkSession::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  outbox_.pop_front();
  if (!ok) return Release();
  if (!closing_ && !outbox_.empty()) StartWrite(&outbox_.front());
}

void LinkSession::OnDone(const grpc::Status& status) {
  absl::MutexLock lock(&mu_);
  status_ = status;
  closing_ = true;
  done_ = true;
}

}  // namespace switchyard::worker
