#include "server/api/generate_reactor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "scheduler/base/clock.h"

namespace switchyard::server {

GenerateReactor::GenerateReactor(RequestContext* request_context, grpc::CallbackServerContext* context)
    : GenerateReactor(request_context, context, request_context->Admit(*context, "InferenceService/Generate")) {}

GenerateReactor::GenerateReactor(RequestContext* request_context, grpc::CallbackServerContext* context,
                                 const absl::StatusOr<Caller>& caller)
    : request_context_(request_context),
      context_(context),
      observed_(request_context->Observe(*context, caller, MonotonicNow())),
      generation_(request_context, caller, context->peer(), observed_) {
  CheckAt(generation_.arrival() + request_context_->config->request_message_timeout);
  request_context_->open_calls.Add(this);
  if (const absl::Status room = generation_.Enter(); !room.ok()) {
    Refuse(room);
  } else {
    StartRead(&incoming_);
  }
}

void GenerateReactor::Refuse(const absl::Status& status) {
  request_context_->metrics->request_error(status.code()).Increment();
  FinishOnce(status);
  absl::MutexLock lock(&mu_);
  stage_ = Stage::kDone;  // the last touch: OnDone may be waiting to delete this
}

bool GenerateReactor::TakeRequest(Stage next) {
  absl::MutexLock lock(&mu_);
  if (stage_ != Stage::kAwaited) return false;
  stage_ = next;
  return true;
}

void GenerateReactor::OnReadDone(bool ok) {
  if (!TakeRequest(Stage::kPreparing)) {  // a second message, or the request came too late
    if (ok) {
      End(rpc::MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_REQUEST_BYTES,
                         "a second request message on one Generate call: one is the limit", {{"limit", "1"}}));
    }
    return;
  }
  if (generation_.cancelled()) return Refuse(absl::CancelledError("the client cancelled"));
  if (!ok) {
    return Refuse(rpc::MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_REQUEST_BYTES,
                                 "the call ended without its request message"));
  }
  request_.Swap(&incoming_);
  StartRead(&incoming_);
  request_context_->pool->Post({.client = request_context_->FrontClient(*generation_.caller(), *context_),
                                .bytes = static_cast<int64_t>(request_.Length()),
                                .run = [this] { Prepare(); },
                                .refuse = [this](const absl::Status& why) { Refuse(why); }});
}

void GenerateReactor::Prepare() {
  const absl::Status status = generation_.Prepare(
      [this](v1::GenerateRequest* message) { return rpc::ParseRaw(request_, message); },
      [this](std::shared_ptr<const ServedModel>* model) { return request_context_->Args(*context_, model); });
  request_.Clear();
  if (!status.ok()) return Refuse(status);
  generation_.Attach([this] { Pump(); });
  absl::MutexLock lock(&mu_);
  stage_ = Stage::kDone;  // the last touch: OnDone may be waiting to delete this
}

void GenerateReactor::Pump() {
  absl::Status end;
  {
    // The lock keeps a write from following Finish; gRPC's actions only start something, and do not block.
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    // An error does not wait for a write that a slow reader holds up.
    const bool failed = generation_.Finished(&end) && !end.ok();
    if (writing_ && !failed) return;
    if (const std::unique_ptr<v1::GenerateResponse> message = generation_.Next(); message != nullptr) {
      writing_ = true;
      since_ = MonotonicNow();
      CheckAt(NextCheck());
      writing_buffer_ = rpc::SerializeRaw(*message);
      StartWrite(&writing_buffer_);
      return;
    }
    if (!generation_.Finished(&end)) return;
  }
  FinishOnce(end);
}

void GenerateReactor::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
  }
  if (!ok) {
    generation_.Cancel(absl::CancelledError("the client is gone"), /*by_client=*/false);
    return FinishOnce(absl::CancelledError("the client is gone"));
  }
  Pump();
}

void GenerateReactor::OnCancel() {
  generation_.Cancel(absl::CancelledError("the client cancelled"), /*by_client=*/false);
  {
    absl::MutexLock lock(&mu_);
    if (stage_ == Stage::kPreparing) return;  // Prepare finishes the call itself
  }
  FinishOnce(absl::CancelledError("the client cancelled"));  // the engine's Close may come later
}

void GenerateReactor::End(const absl::Status& status) {
  FinishOnce(status);
  generation_.Cancel(status, /*by_client=*/true);
}

absl::Time GenerateReactor::NextCheck() const {
  if (finished_) return reset_ ? absl::InfiniteFuture() : since_ + request_context_->config->unread_end_timeout;
  if (writing_) return since_ + request_context_->config->slow_client_timeout;
  return stage_ == Stage::kAwaited ? generation_.arrival() + request_context_->config->request_message_timeout
                                   : absl::InfiniteFuture();
}

void GenerateReactor::CheckTime(absl::Time now) {
  if (const absl::Duration wait = request_context_->config->request_message_timeout;
      now - generation_.arrival() > wait && TakeRequest(Stage::kDone)) {
    const std::string text = absl::FormatDuration(wait);
    Refuse(rpc::MakeError(absl::StatusCode::kDeadlineExceeded, v1::DEADLINE,
                          absl::StrCat("no request message came within ", text, " (--request_message_timeout)"),
                          {{"limit", text}}));
  }
  const absl::Duration limit = request_context_->config->slow_client_timeout;
  bool slow, gone;
  {
    absl::MutexLock lock(&mu_);
    slow = writing_ && !finished_ && now - since_ > limit;
    gone = finished_ && !reset_ && now - since_ > request_context_->config->unread_end_timeout;
    reset_ = reset_ || gone;
    CheckAt(NextCheck());
  }
  // The engine ends requests that still run; this ends those that were complete before their client read them.
  if (slow) End(SlowReader(limit));
  if (gone) context_->TryCancel();
}

void GenerateReactor::FinishOnce(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (std::exchange(finished_, true)) return;
  since_ = MonotonicNow();
  generation_.SetEnd(status.code());
  if (observed_ != nullptr) observed_->SetEnd(status, since_);
  CheckAt(NextCheck());
  Finish(OnTheWire(status, generation_.request_id(), context_));
}

void GenerateReactor::OnDone() {
  {
    absl::MutexLock lock(&mu_);
    const auto prepared = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stage_ != Stage::kPreparing; };
    mu_.Await(absl::Condition(&prepared));
  }
  generation_.Attach(nullptr);
  request_context_->open_calls.Remove(this);
  delete this;
}

}  // namespace switchyard::server
