#include "server/api/generation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "server/admission/peer_name.h"
#include "server/api/model_names.h"

namespace switchyard::server {

Generation::Generation(RequestContext* request_context, absl::StatusOr<Caller> caller, absl::string_view peer,
                       std::shared_ptr<ObservedRequest> observed)
    : request_context_(request_context),
      caller_(std::move(caller)),
      share_(caller_.ok() && !caller_->name.empty() ? caller_->name : ClientOfPeer(peer)),
      arrival_(MonotonicNow()),
      observed_(std::move(observed)),
      handle_(request_context->engine->NextHandle()),
      stream_(std::make_shared<TokenStream>()) {}

Generation::~Generation() {
  stream_->Detach();
  SettleQuota();
  if (has_share_) request_context_->streams_of.Leave(share_);
  if (has_place_) CountPlace(-1);
}

absl::Status Generation::Enter() {
  const ServerConfig& config = *request_context_->config;
  const auto full = [](absl::string_view whose, int limit) {
    return rpc::WithRetry(
        rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::TOO_MANY_STREAMS,
                       absl::StrCat("open Generate calls", whose, ": limit ", limit), {{"limit", absl::StrCat(limit)}}),
        absl::Milliseconds(500));
  };
  RETURN_IF_ERROR(caller_.status());
  // A call that is refused may stay until its client has read why: it must not hold a place meanwhile.
  has_share_ = request_context_->streams_of.Enter(share_, config.max_streams_per_client);
  if (!has_share_) return full(" of one client", config.max_streams_per_client);
  has_place_ = CountPlace(+1) <= config.max_streams;
  if (has_place_) return absl::OkStatus();
  CountPlace(-1);
  return full("", config.max_streams);
}

int Generation::CountPlace(int change) {
  const int open = request_context_->open_streams.fetch_add(change) + change;
  request_context_->metrics->open_streams->Set(open);
  return open;
}

absl::Status Generation::Prepare(ParseFn parse, ArgsFn make_args) {
  if (cancelled()) return absl::CancelledError("the client cancelled");
  v1::GenerateRequest message;
  std::shared_ptr<const ServedModel> model;
  absl::StatusOr<std::unique_ptr<InferenceRequest>> request =
      [&]() -> absl::StatusOr<std::unique_ptr<InferenceRequest>> {
    RETURN_IF_ERROR(CountRequest());  // first: parsing and tokenizing are work, too
    RETURN_IF_ERROR(parse(&message));
    ASSIGN_OR_RETURN(ConvertArgs args, make_args(&model));
    args.now = arrival_;  // the wait for the front pool is part of the time to the first token
    args.cancelled = [this] { return cancelled(); };
    const absl::Time start = MonotonicNow();
    auto converted = ConvertGenerate(message, args);
    if (converted.ok()) (*converted)->owner = caller_->name;
    request_context_->metrics->tokenize_seconds->Increment(absl::ToDoubleSeconds(MonotonicNow() - start));
    return converted;
  }();
  {
    absl::MutexLock lock(&mu_);
    request_id_ = request.ok() ? (*request)->request_id : message.request_id();
    if (request.ok()) {
      seed_ = (*request)->sampling.seed;
      model_ = ModelName(*model, (*request)->adapter);
      prompt_tokens_ = static_cast<int64_t>((*request)->prompt.size());
    }
  }
  if (observed_ != nullptr) Observe(message, request.ok() ? request->get() : nullptr);
  RETURN_IF_ERROR(request.status());
  RETURN_IF_ERROR(TakeTokens(**request));
  (*request)->observed = observed_;
  request_context_->engine->Submit(handle_, *std::move(request), stream_);
  if (cancelled()) request_context_->engine->Cancel(handle_, absl::CancelledError("the client cancelled"));
  return absl::OkStatus();
}

void Generation::Observe(const v1::GenerateRequest& message, const InferenceRequest* request) {
  observed_->SetAsked({.id = request == nullptr ? message.request_id() : request->request_id,
                       .model = message.model(),
                       .is_chat = message.has_messages()});
  if (request == nullptr) return;
  observed_->AddAccepted({.prompt_tokens = static_cast<int64_t>(request->prompt.size()),
                          .num_choices = request->num_choices,
                          .max_tokens = request->max_tokens,
                          .sampling = request->sampling});
}

absl::Status Generation::CountRequest() {
  if (caller_->name.empty()) return absl::OkStatus();
  const absl::Status taken = request_context_->quotas.TakeRequest(*caller_, MonotonicNow());
  if (taken.ok()) {
    request_context_->metrics->key_requests(caller_->name).Increment();
  } else {
    request_context_->metrics->call_refused(v1::ErrorReason_Name(v1::QUOTA)).Increment();
  }
  return taken;
}

absl::Status Generation::TakeTokens(const InferenceRequest& request) {
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
  return absl::OkStatus();
}

void Generation::SettleQuota() {
  absl::MutexLock lock(&mu_);
  if (taken_tokens_ == 0) return;
  const absl::StatusCode end = end_.value_or(absl::StatusCode::kOk);
  // The server refused or lost a request of which nothing was answered: its prompt does not count.
  const bool by_client =
      by_client_ || end == absl::StatusCode::kCancelled || end == absl::StatusCode::kDeadlineExceeded;
  const bool for_nothing = !answered_ && end != absl::StatusCode::kOk && !by_client;
  const int64_t used = for_nothing ? 0 : prompt_tokens_ + sent_tokens_;
  request_context_->quotas.GiveBackTokens(*caller_, taken_tokens_ - used);
  request_context_->metrics->key_tokens(caller_->name).Increment(static_cast<double>(used));
}

std::unique_ptr<v1::GenerateResponse> Generation::Next() {
  std::optional<OutputChunk> chunk = stream_->Pop(MonotonicNow());
  if (!chunk.has_value()) return nullptr;
  const auto tokens = static_cast<int64_t>(chunk->tokens.size());
  auto message = std::make_unique<v1::GenerateResponse>(ToProto(*std::move(chunk), *request_context_->text));
  absl::MutexLock lock(&mu_);
  sent_tokens_ += tokens;
  if (std::exchange(answered_, true)) return message;
  message->set_request_id(request_id_);
  message->set_seed(seed_);
  message->set_model(model_);
  return message;
}

void Generation::Cancel(const absl::Status& why, bool by_client) {
  cancelled_.store(true);
  if (by_client) {
    absl::MutexLock lock(&mu_);
    by_client_ = true;
  }
  request_context_->engine->Cancel(handle_, why);
}

void Generation::SetEnd(absl::StatusCode code) {
  absl::MutexLock lock(&mu_);
  if (!end_.has_value()) end_ = code;
}

}  // namespace switchyard::server
