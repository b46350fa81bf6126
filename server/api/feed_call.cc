#include "server/api/feed_call.h"

#include <utility>

#include "proto/support/raw_message.h"
#include "scheduler/base/clock.h"

namespace switchyard::server {

void Feed::Offer(MessageFn message) {
  absl::MutexLock lock(&mu_);
  if (call_ == nullptr) return;
  call_->feed_->mu_.AssertHeld();  // mu_, by another name
  call_->newest_ = std::move(message);
  call_->Pump();
}

void Feed::End(absl::Status status) {
  absl::MutexLock lock(&mu_);
  if (call_ == nullptr) return;
  call_->feed_->mu_.AssertHeld();
  if (call_->end_.has_value()) return;
  call_->end_ = std::move(status);
  call_->Pump();
}

void Feed::EndWith(MessageFn next) {
  absl::MutexLock lock(&mu_);
  if (call_ == nullptr) return;
  call_->feed_->mu_.AssertHeld();
  if (call_->end_.has_value()) return;
  call_->end_ = absl::OkStatus();
  call_->rest_ = std::move(next);
  call_->Pump();
}

bool Feed::gone() {
  absl::MutexLock lock(&mu_);
  return call_ == nullptr;
}

FeedCall::FeedCall(RequestContext* request_context, grpc::CallbackServerContext* context, absl::string_view method)
    : request_context_(request_context),
      context_(context),
      caller_(request_context->Admit(*context, method)),
      feed_(std::make_shared<Feed>()) {
  request_context_->open_calls.Add(this);
  absl::MutexLock lock(&feed_->mu_);
  feed_->call_ = this;
}

bool FeedCall::Refused() {
  if (caller_.ok()) return false;
  feed_->End(caller_.status());
  return true;
}

void FeedCall::Abandon(absl::string_view why) {
  if (!end_.has_value() || rest_) end_ = absl::CancelledError(why);
  rest_ = nullptr;
}

absl::Duration FeedCall::Patience() const {
  return finished_ ? request_context_->config->unread_end_timeout : request_context_->config->slow_client_timeout;
}

void FeedCall::Pump() {
  if (!writing_ && !finished_) Advance();
  if (writing_ || finished_) return CheckAt(reset_ ? absl::InfiniteFuture() : since_ + Patience());
  CheckAt(newest_ ? since_ + min_interval_ : absl::InfiniteFuture());
}

void FeedCall::Advance() {
  const absl::Time now = MonotonicNow();
  const bool failed = end_.has_value() && !end_->ok();
  if (newest_ && !end_.has_value() && now - since_ < min_interval_) return;  // CheckTime sends it later
  std::unique_ptr<google::protobuf::Message> message;
  if (!failed && newest_) {
    message = std::exchange(newest_, nullptr)();
  } else if (!failed && rest_) {
    message = rest_();
  }
  if (message != nullptr) {
    writing_ = true;
    since_ = now;
    buffer_ = rpc::SerializeRaw(*message);
    StartWrite(&buffer_);
    return;
  }
  if (!end_.has_value()) return;
  finished_ = true;
  since_ = now;
  if (failed) request_context_->metrics->request_error(end_->code()).Increment();
  Finish(failed ? OnTheWire(*end_, "", context_) : grpc::Status::OK);
}

void FeedCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&feed_->mu_);
  writing_ = false;
  if (!ok) Abandon("the client is gone");
  Pump();
}

void FeedCall::OnCancel() {
  absl::MutexLock lock(&feed_->mu_);
  Abandon("the client cancelled");
  Pump();
}

void FeedCall::CheckTime(absl::Time now) {
  absl::MutexLock lock(&feed_->mu_);
  if (!reset_ && (writing_ || finished_) && now - since_ > Patience()) {
    reset_ = true;
    context_->TryCancel();
  }
  Pump();
}

void FeedCall::OnDone() {
  std::function<void()> on_over;
  {
    // The thread that called Finish may still hold the lock.
    absl::MutexLock lock(&feed_->mu_);
    feed_->call_ = nullptr;
    on_over = std::move(on_over_);
  }
  request_context_->open_calls.Remove(this);
  if (on_over) on_over();
  delete this;
}

}  // namespace switchyard::server
