#include "server/api/feed_call.h"

#include <utility>

#include "proto/support/raw_message.h"
#include "server/clock.h"

namespace switchyard::server {

void Feed::Offer(MessageFn message) {
  absl::MutexLock lock(&mu_);
  if (call_ == nullptr) return;
  call_->newest_ = std::move(message);
  call_->Pump();
}

void Feed::End(absl::Status status) {
  absl::MutexLock lock(&mu_);
  if (call_ == nullptr || call_->end_ != nullptr) return;
  call_->end_ = std::make_unique<const absl::Status>(std::move(status));
  call_->Pump();
}

bool Feed::gone() {
  absl::MutexLock lock(&mu_);
  return call_ == nullptr;
}

FeedCall::FeedCall(RequestContext* request_context, grpc::CallbackServerContext* context)
    : request_context_(request_context), context_(context), feed_(std::make_shared<Feed>()) {
  request_context_->open_calls.Add(this);
  absl::MutexLock lock(&feed_->mu_);
  feed_->call_ = this;
}

void FeedCall::set_min_interval(absl::Duration interval) {
  absl::MutexLock lock(&feed_->mu_);
  min_interval_ = interval;
}

void FeedCall::set_on_over(std::function<void()> on_over) {
  absl::MutexLock lock(&feed_->mu_);
  on_over_ = std::move(on_over);
}

void FeedCall::Pump() {
  if (!writing_ && !finished_) Advance();
  const absl::Duration limit =
      finished_ ? request_context_->config->unread_end_timeout : request_context_->config->slow_client_timeout;
  if (writing_ || finished_) return CheckAt(reset_ ? absl::InfiniteFuture() : since_ + limit);
  CheckAt(newest_ ? since_ + min_interval_ : absl::InfiniteFuture());
}

void FeedCall::Advance() {
  const absl::Time now = MonotonicNow();
  const bool failed = end_ != nullptr && !end_->ok();
  if (newest_ && !failed) {
    if (end_ == nullptr && now - since_ < min_interval_) return;  // CheckTime comes back to it
    writing_ = true;
    since_ = now;
    buffer_ = rpc::SerializeRaw(*std::exchange(newest_, nullptr)());
    StartWrite(&buffer_);
    return;
  }
  if (end_ == nullptr) return;
  finished_ = true;
  since_ = now;
  if (failed) request_context_->metrics->request_error(absl::StatusCodeToString(end_->code())).Increment();
  Finish(failed ? OnTheWire(*end_, "", context_) : grpc::Status::OK);
}

void FeedCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&feed_->mu_);
  writing_ = false;
  if (!ok && end_ == nullptr) end_ = std::make_unique<const absl::Status>(absl::CancelledError("the client is gone"));
  Pump();
}

void FeedCall::OnCancel() {
  absl::MutexLock lock(&feed_->mu_);
  if (end_ == nullptr) end_ = std::make_unique<const absl::Status>(absl::CancelledError("the client cancelled"));
  Pump();
}

void FeedCall::CheckTime(absl::Time now) {
  absl::MutexLock lock(&feed_->mu_);
  const absl::Duration limit =
      finished_ ? request_context_->config->unread_end_timeout : request_context_->config->slow_client_timeout;
  if (!reset_ && (writing_ || finished_) && now - since_ > limit) {
    reset_ = true;
    context_->TryCancel();
  }
  Pump();
}

void FeedCall::OnDone() {
  std::function<void()> on_over;
  {
    // Whoever called Finish may still hold the lock.
    absl::MutexLock lock(&feed_->mu_);
    feed_->call_ = nullptr;
    on_over = std::move(on_over_);
  }
  request_context_->open_calls.Remove(this);
  if (on_over) on_over();
  delete this;
}

}  // namespace switchyard::server
