#include "server/api/generate_reactor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "scheduler/base/status_macros.h"
#include "server/admission/peer_name.h"
#include "server/clock.h"

namespace switchyard::server {
namespace {

// Returns whose share of places a call uses: its key's, or without keys its address's.
std::string ShareOf(const absl::StatusOr<Caller>& caller, absl::string_view peer) {
  return caller.ok() && !caller->name.empty() ? caller->name : ClientOfPeer(peer);
}

}  // namespace

GenerateReactor::GenerateReactor(RequestContext* request_context, grpc::CallbackServerContext* context)
    : request_context_(request_context),
      context_(context),
      caller_(request_context->Admit(*context, "InferenceService/Generate")),
      client_(ShareOf(caller_, context->peer())),
      arrival_(MonotonicNow()),
      handle_(request_context->engine->NextHandle()),
      stream_(std::make_shared<TokenStream>()) {
  CheckAt(arrival_ + request_context_->config->request_message_timeout);
  request_context_->open_calls.Add(this);
  if (const absl::Status room = Enter(); !room.ok()) {
    Refuse(room);
  } else {
    StartRead(&incoming_);
  }
}

absl::Status GenerateReactor::Enter() {
  const ServerConfig& config = *request_context_->config;
  const auto full = [](absl::string_view whose, int limit) {
    return rpc::WithRetry(
        rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::TOO_MANY_STREAMS,
                       absl::StrCat("open Generate calls", whose, ": limit ", limit), {{"limit", absl::StrCat(limit)}}),
        absl::Milliseconds(500));
  };
  RETURN_IF_ERROR(caller_.status());
  const int open = request_context_->open_streams.fetch_add(1) + 1;
  has_place_ = true;
  request_context_->metrics->open_streams->Set(open);
  if (open > config.max_streams) return full("", config.max_streams);
  has_share_ = request_context_->streams_of.Enter(client_, config.max_streams_per_client);
  return has_share_ ? absl::OkStatus() : full(" of one client", config.max_streams_per_client);
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
  if (cancelled_.load()) return Refuse(absl::CancelledError("the client cancelled"));
  if (!ok) {
    return Refuse(rpc::MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_REQUEST_BYTES,
                                 "the call ended without its request message"));
  }
  request_.Swap(&incoming_);
  StartRead(&incoming_);
  request_context_->pool->Post({.client = request_context_->FrontClient(*caller_, *context_),
                                .bytes = static_cast<int64_t>(request_.Length()),
                                .run = [this] { Prepare(); },
                                .refuse = [this](const absl::Status& why) { Refuse(why); }});
}

void GenerateReactor::Prepare() {
  if (cancelled_.load()) return Refuse(absl::CancelledError("the client cancelled"));
  v1::GenerateRequest message;
  std::shared_ptr<const ServedModel> model;
  absl::StatusOr<std::unique_ptr<InferenceRequest>> request =
      [&]() -> absl::StatusOr<std::unique_ptr<InferenceRequest>> {
    RETURN_IF_ERROR(CountRequest());  // first: parsing and tokenizing are work, too
    RETURN_IF_ERROR(rpc::ParseRaw(request_, &message));
    ASSIGN_OR_RETURN(ConvertArgs args, request_context_->Args(*context_, &model));
    args.now = arrival_;  // the wait for the front pool is part of the time to the first token
    args.cancelled = [this] { return cancelled_.load(); };
    const absl::Time start = MonotonicNow();
    auto converted = ConvertGenerate(message, args);
    if (converted.ok()) (*converted)->owner = caller_->name;
    request_context_->metrics->tokenize_seconds->Increment(absl::ToDoubleSeconds(MonotonicNow() - start));
    return converted;
  }();
  request_.Clear();
  {
    absl::MutexLock lock(&mu_);
    request_id_ = request.ok() ? (*request)->request_id : message.request_id();
    if (request.ok()) {
      seed_ = (*request)->sampling.seed;
      model_ = model->name;
    }
  }
  if (!request.ok()) return Refuse(request.status());
  if (const absl::Status quota = TakeTokens(**request); !quota.ok()) return Refuse(quota);
  request_context_->engine->Submit(handle_, *std::move(request), stream_);
  if (cancelled_.load()) request_context_->engine->Cancel(handle_, absl::CancelledError("the client cancelled"));
  stream_->Attach([this] { Pump(); });
  absl::MutexLock lock(&mu_);
  stage_ = Stage::kDone;  // the last touch: OnDone may be waiting to delete this
}

absl::Status GenerateReactor::CountRequest() {
  if (caller_->name.empty()) return absl::OkStatus();
  const absl::Status taken = request_context_->quotas.TakeRequest(*caller_, MonotonicNow());
  if (taken.ok()) {
    request_context_->metrics->key_requests(caller_->name).Increment();
  } else {
    request_context_->metrics->call_refused(v1::ErrorReason_Name(v1::QUOTA)).Increment();
  }
  return taken;
}

absl::Status GenerateReactor::TakeTokens(const InferenceRequest& request) {
  if (caller_->name.empty()) return absl::OkStatus();
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t tokens = prompt + int64_t{request.num_choices} * request.max_tokens;
  const absl::Status taken = request_context_->quotas.TakeTokens(*caller_, tokens, MonotonicNow());
  if (!taken.ok()) {
    request_context_->metrics->call_refused(v1::ErrorReason_Name(v1::QUOTA)).Increment();
    return taken;
  }
  absl::MutexLock lock(&mu_);
  taken_tokens_ = tokens;
  prompt_tokens_ = prompt;
  return absl::OkStatus();
}

void GenerateReactor::SettleQuota() {
  absl::MutexLock lock(&mu_);
  if (taken_tokens_ == 0) return;
  // The server refused or lost a request of which nothing was answered: its prompt does not count.
  const bool by_client =
      by_client_ || end_ == absl::StatusCode::kCancelled || end_ == absl::StatusCode::kDeadlineExceeded;
  const bool for_nothing = first_ && end_ != absl::StatusCode::kOk && !by_client;
  const int64_t used = for_nothing ? 0 : prompt_tokens_ + sent_tokens_;
  request_context_->quotas.GiveBackTokens(*caller_, taken_tokens_ - used);
  request_context_->metrics->key_tokens(caller_->name).Increment(static_cast<double>(used));
}

void GenerateReactor::Pump() {
  absl::Status end;
  {
    // The lock keeps a write from following Finish; gRPC's actions only start something, and do not block.
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    // An error does not wait for a write that a slow reader holds up.
    const bool failed = stream_->Finished(&end) && !end.ok();
    if (writing_ && !failed) return;
    if (std::optional<OutputChunk> chunk = stream_->Pop(MonotonicNow())) {
      sent_tokens_ += static_cast<int64_t>(chunk->tokens.size());
      v1::GenerateResponse message = ToProto(*std::move(chunk), *request_context_->text);
      if (std::exchange(first_, false)) {
        message.set_request_id(request_id_);
        message.set_seed(seed_);
        message.set_model(model_);
      }
      writing_ = true;
      since_ = MonotonicNow();
      CheckAt(NextCheck());
      writing_buffer_ = rpc::SerializeRaw(message);
      StartWrite(&writing_buffer_);
      return;
    }
    if (!stream_->Finished(&end)) return;
  }
  FinishOnce(end);
}

void GenerateReactor::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
  }
  if (!ok) {
    request_context_->engine->Cancel(handle_, absl::CancelledError("the client is gone"));
    return FinishOnce(absl::CancelledError("the client is gone"));
  }
  Pump();
}

void GenerateReactor::OnCancel() {
  cancelled_.store(true);
  request_context_->engine->Cancel(handle_, absl::CancelledError("the client cancelled"));
  {
    absl::MutexLock lock(&mu_);
    if (stage_ == Stage::kPreparing) return;  // Prepare finishes the call itself
  }
  FinishOnce(absl::CancelledError("the client cancelled"));  // the engine's Close may come later
}

void GenerateReactor::End(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    by_client_ = true;
  }
  FinishOnce(status);
  cancelled_.store(true);  // a request in preparation is not begun, or cancelled right after it begins
  request_context_->engine->Cancel(handle_, status);
}

absl::Time GenerateReactor::NextCheck() const {
  if (finished_) return reset_ ? absl::InfiniteFuture() : since_ + request_context_->config->unread_end_timeout;
  if (writing_) return since_ + request_context_->config->slow_client_timeout;
  return stage_ == Stage::kAwaited ? arrival_ + request_context_->config->request_message_timeout
                                   : absl::InfiniteFuture();
}

void GenerateReactor::CheckTime(absl::Time now) {
  if (const absl::Duration wait = request_context_->config->request_message_timeout;
      now - arrival_ > wait && TakeRequest(Stage::kDone)) {
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
  end_ = status.code();
  CheckAt(NextCheck());
  Finish(OnTheWire(status, request_id_, context_));
}

void GenerateReactor::OnDone() {
  {
    absl::MutexLock lock(&mu_);
    const auto prepared = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stage_ != Stage::kPreparing; };
    mu_.Await(absl::Condition(&prepared));
  }
  stream_->Detach();
  SettleQuota();
  request_context_->open_calls.Remove(this);
  if (has_share_) request_context_->streams_of.Leave(client_);
  if (has_place_) request_context_->metrics->open_streams->Set(request_context_->open_streams.fetch_sub(1) - 1);
  delete this;
}

}  // namespace switchyard::server
