// The engine loop's requests: admission, cancellation, and the way from scheduler events to streams.
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "server/clock.h"
#include "server/engine/engine_loop.h"

namespace switchyard {
namespace {

Request ToSchedulerRequest(uint64_t handle, const InferenceRequest& request) {
  Request out;
  out.id = handle;
  out.prompt = request.prompt;
  out.sampling = request.sampling;
  out.num_choices = request.num_choices;
  out.max_tokens = request.max_tokens;
  out.deadline = request.deadline;
  return out;
}

bool IsClean(FinishReason reason) {
  return reason == FinishReason::kStop || reason == FinishReason::kLength || reason == FinishReason::kAbort;
}

// Of a sequence that ended.  Phases that it did not reach are left out: zeros would hide what the others took.
void ObserveTimings(const SequenceTimings& timings, ServerMetrics* metrics) {
  metrics->request_queue_time->Observe(absl::ToDoubleSeconds(timings.Queue()));
  if (timings.first_token == absl::InfinitePast()) return;
  metrics->request_prefill_time->Observe(absl::ToDoubleSeconds(timings.Prefill()));
  metrics->request_decode_time->Observe(absl::ToDoubleSeconds(timings.Decode()));
  metrics->request_inference_time->Observe(absl::ToDoubleSeconds(timings.Prefill() + timings.Decode()));
}

}  // namespace

void EngineLoop::Submit(uint64_t handle, std::unique_ptr<InferenceRequest> request,
                        std::shared_ptr<TokenStream> stream) {
  const bool posted = Post([this, handle, request = std::move(request), stream]() mutable {
    HandleSubmit(handle, std::move(request), std::move(stream));
  });
  if (!posted) stream->Close(Stopping());
}

void EngineLoop::Cancel(uint64_t handle, absl::Status status) {
  Post([this, handle, status = std::move(status)] { HandleCancel(handle, status); });
}

void EngineLoop::Abort(std::string request_id, std::function<void(bool)> done) {
  const bool posted = Post([this, request_id = std::move(request_id), done] {
    const auto it = by_request_id_.find(request_id);
    if (it == by_request_id_.end()) return done(false);
    const absl::Time now = MonotonicNow();
    std::vector<Event> events;
    scheduler_->Cancel(it->second, Scheduler::kAllChoices, FinishReason::kAbort, now, &events);
    Publish(std::move(events), now);
    done(true);
  });
  if (!posted) done(false);
}

absl::Status EngineLoop::Admit(const InferenceRequest& request, absl::Time now) const {
  if (draining_) return Stopping();
  if (!scheduler_) {
    return WithRetry(
        MakeError(absl::StatusCode::kFailedPrecondition, v1::MODEL_LOADING,
                  absl::StrCat("model ", config_->served_model_name, " is LOADING: ", group_.NotReadyReason())),
        absl::Seconds(1));
  }
  // While a lost group forms anew requests queue, as far as the queue's bound and their deadlines allow.
  if (GivenUp(now)) return GivenUpError();
  if (by_request_id_.contains(request.request_id)) {
    return MakeError(absl::StatusCode::kAlreadyExists, v1::REQUEST_EXISTS,
                     absl::StrCat("request_id ", Quote(request.request_id), " belongs to a running request"),
                     {{"field", "request_id"}});
  }
  return absl::OkStatus();
}

absl::Status EngineLoop::GivenUpError() const {
  return WithRetry(
      MakeError(absl::StatusCode::kUnavailable, v1::WORKER_LOST, absl::StrCat(WhyNoGroup(), "; ", down_reason_)),
      absl::Seconds(1));
}

// The scheduler's refusal in the API's words.
absl::Status EngineLoop::Refusal(const absl::Status& status) const {
  if (absl::IsResourceExhausted(status)) {
    return WithRetry(MakeError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL, status.message(),
                               {{"limit", absl::StrCat(scheduler_->policy().max_queue)}}),
                     scheduler_->RetryAfter());
  }
  if (absl::IsInvalidArgument(status))
    return MakeError(status.code(), v1::PROMPT_TOO_LONG, status.message(), {{"field", "prompt"}});
  return status;
}

void EngineLoop::HandleSubmit(uint64_t handle, std::unique_ptr<InferenceRequest> request,
                              std::shared_ptr<TokenStream> stream) {
  const absl::Time now = MonotonicNow();
  absl::Status status = Admit(*request, now);
  if (status.ok()) {
    status = scheduler_->Submit(ToSchedulerRequest(handle, *request), now);
    if (!status.ok()) status = Refusal(status);
  }
  if (!status.ok()) {
    metrics_->request_error(absl::StatusCodeToString(status.code())).Increment();
    stream->Close(status);
    return;
  }
  metrics_->request_prompt_tokens->Observe(static_cast<double>(request->prompt.size()));
  metrics_->prompt_tokens->Increment(static_cast<double>(request->prompt.size()));
  metrics_->request_params_n->Observe(request->num_choices);
  metrics_->request_params_max_tokens->Observe(request->max_tokens);
  auto live = std::make_unique<LiveRequest>();
  live->handle = handle;
  live->unfinished = request->num_choices;
  live->ended.assign(request->num_choices, false);
  live->chunks.resize(request->num_choices);
  for (int choice = 0; choice < request->num_choices; ++choice) {
    live->choices.emplace_back(request.get(), request->has_text ? text_->tokenizer() : nullptr);
    live->chunks[choice].choice = choice;
  }
  by_request_id_[request->request_id] = handle;
  live->request = std::move(request);
  live->stream = std::move(stream);
  live_[handle] = std::move(live);
}

void EngineLoop::HandleCancel(uint64_t handle, const absl::Status& status) {
  const auto it = live_.find(handle);
  if (it == live_.end()) return;
  const absl::Time now = MonotonicNow();
  std::vector<Event> events;
  it->second->error = status;
  scheduler_->Cancel(handle, Scheduler::kAllChoices, FinishReason::kAbort, now, &events);
  Publish(std::move(events), now);
}

void EngineLoop::EndSlowReaders(absl::Time now) {
  std::vector<uint64_t> slow;
  for (const auto& [handle, live] : live_) {
    if (now - live->stream->WaitingSince() > config_->slow_client_timeout) slow.push_back(handle);
  }
  for (uint64_t handle : slow) {
    HandleCancel(handle, SlowReader(config_->slow_client_timeout));
  }
}

void EngineLoop::EndAll(const absl::Status& status) {
  std::vector<uint64_t> rest;
  for (const auto& [handle, live] : live_) rest.push_back(handle);
  for (uint64_t handle : rest) HandleCancel(handle, status);
}

absl::Status EngineLoop::Stopping() {
  return MakeError(absl::StatusCode::kUnavailable, v1::DRAINING, "the server is stopping; try another one");
}

void EngineLoop::Publish(std::vector<Event> events, absl::Time now) {
  // A stop string that is found cancels its choice, which adds events: hence the loop.
  while (!events.empty()) {
    std::vector<Event> more;
    for (Event& event : events) PublishOne(std::move(event), now, &more);
    events = std::move(more);
  }
  for (uint64_t handle : std::exchange(touched_, {})) {
    const auto it = live_.find(handle);
    if (it != live_.end()) FlushChunks(it->second.get(), now);
  }
}

void EngineLoop::PublishOne(Event event, absl::Time now, std::vector<Event>* more) {
  const auto it = live_.find(event.request);
  if (it == live_.end()) return;
  LiveRequest* live = it->second.get();
  if (live->ended[event.choice]) return;
  touched_.push_back(live->handle);
  if (auto* token = std::get_if<TokenEvent>(&event.what)) {
    PublishToken(live, event.choice, std::move(*token), now, more);
  } else if (auto* prompt = std::get_if<PromptLogprobsEvent>(&event.what)) {
    std::vector<PositionLogprobs>& to = live->chunks[event.choice].prompt_logprobs;
    std::move(prompt->positions.begin(), prompt->positions.end(), std::back_inserter(to));
  } else if (auto* paths = std::get_if<ExpertPathsEvent>(&event.what)) {
    PublishPaths(live, event.choice, *std::move(paths));
  } else {
    PublishFinished(live, event.choice, std::get<FinishedEvent>(event.what));
  }
}

void EngineLoop::PublishPaths(LiveRequest* live, int choice, ExpertPathsEvent paths) {
  if (live->choices[choice].stop_string()) return;  // of tokens behind the stop
  JoinPaths(&live->chunks[choice].expert_paths, {.first_position = paths.first_position,
                                                 .num_moe_layers = live->request->num_moe_layers,
                                                 .top_k = live->request->top_k,
                                                 .experts = std::move(paths.experts)});
}

void EngineLoop::PublishToken(LiveRequest* live, int choice, TokenEvent token, absl::Time now,
                              std::vector<Event>* more) {
  ChoiceOutput& output = live->choices[choice];
  if (output.stop_string()) return;  // what was in flight behind the stop
  OutputChunk& chunk = live->chunks[choice];
  if (chunk.tokens.empty()) chunk.index = token.index;
  chunk.tokens.push_back(token.token);
  if (token.logprobs) chunk.logprobs.push_back(std::move(*token.logprobs));
  chunk.text += output.Take(token.token, token.index);
  if (!live->saw_first_token) {
    live->saw_first_token = true;
    metrics_->time_to_first_token->Observe(absl::ToDoubleSeconds(now - live->request->arrival));
  }
  if (output.last_token_time != absl::InfinitePast()) {
    metrics_->inter_token_latency->Observe(absl::ToDoubleSeconds(now - output.last_token_time));
  }
  output.last_token_time = now;
  if (output.stop_string()) scheduler_->Cancel(live->handle, choice, FinishReason::kStop, now, more);
}

void EngineLoop::PublishFinished(LiveRequest* live, int choice, const FinishedEvent& finished) {
  live->ended[choice] = true;
  --live->unfinished;
  // The last allowed token may complete a stop string; the scheduler, which sees no text, then says kLength.
  const bool stopped = finished.reason == FinishReason::kLength && live->choices[choice].stop_string();
  const FinishReason reason = stopped ? FinishReason::kStop : finished.reason;
  // As vLLM counts: a client that goes away aborts; what the server ends for a fault of either side is no success.
  if (IsClean(reason) && (live->error.ok() || absl::IsCancelled(live->error)))
    metrics_->request_success(reason).Increment();
  metrics_->request_generation_tokens->Observe(finished.usage.completion_tokens);
  live->most_tokens = std::max(live->most_tokens, finished.usage.completion_tokens);
  if (live->unfinished == 0) metrics_->request_max_num_generation_tokens->Observe(live->most_tokens);
  ObserveTimings(finished.timings, metrics_);
  if (!IsClean(reason)) {
    if (live->error.ok()) live->error = ErrorOf(*live, reason);
    return;
  }
  OutputChunk& chunk = live->chunks[choice];
  chunk.text += live->choices[choice].Flush();
  chunk.finished = true;
  chunk.reason = reason;
  chunk.stop_token = reason == FinishReason::kStop ? live->choices[choice].stop_token() : -1;
  chunk.stop_string = live->choices[choice].stop_string().value_or("");
  chunk.usage = finished.usage;
  chunk.timings = finished.timings;
}

void EngineLoop::FlushChunks(LiveRequest* live, absl::Time now) {
  for (OutputChunk& chunk : live->chunks) {
    if (chunk.tokens.empty() && chunk.prompt_logprobs.empty() && chunk.expert_paths.experts.empty() && !chunk.finished)
      continue;
    const int choice = chunk.choice;
    live->stream->Push(std::exchange(chunk, OutputChunk{}), now);
    chunk.choice = choice;
  }
  if (!live->error.ok()) {
    EndCall(live, live->error, now);
  } else if (live->unfinished == 0) {
    EndCall(live, absl::OkStatus(), now);
  }
}

void EngineLoop::EndCall(LiveRequest* live, absl::Status status, absl::Time now) {
  if (status.ok()) {
    metrics_->e2e_request_latency->Observe(absl::ToDoubleSeconds(now - live->request->arrival));
  } else {
    metrics_->request_error(absl::StatusCodeToString(status.code())).Increment();
  }
  // Of several choices some may still run when one ended badly.
  std::vector<Event> ignored;
  scheduler_->Cancel(live->handle, Scheduler::kAllChoices, FinishReason::kAbort, now, &ignored);
  live->stream->Close(std::move(status));
  by_request_id_.erase(live->request->request_id);
  live_.erase(live->handle);
}

absl::Status EngineLoop::ErrorOf(const LiveRequest& live, FinishReason reason) const {
  switch (reason) {
    case FinishReason::kDeadline:
      return MakeError(absl::StatusCode::kDeadlineExceeded, v1::DEADLINE,
                       absl::StrCat("the request's deadline passed (one without gets the server's --default_deadline, ",
                                    absl::FormatDuration(config_->default_deadline), ")",
                                    group_.state() == WorkerGroup::State::kReady
                                        ? std::string()
                                        : absl::StrCat("; no group of workers stands: ", group_.NotReadyReason(), "; ",
                                                       down_reason_)));
    case FinishReason::kError:
      return MakeError(absl::StatusCode::kDataLoss, v1::NUMERIC_ERROR,
                       "the model computed NaN or Inf for this request");
    case FinishReason::kUnavailable:
      if (GivenUp(MonotonicNow())) return GivenUpError();
      return WithRetry(MakeError(absl::StatusCode::kUnavailable, v1::WORKER_LOST,
                                 absl::StrCat("the workers' group was lost: ", down_reason_)),
                       absl::Seconds(1));
    default:
      return MakeError(absl::StatusCode::kInternal, v1::ENGINE_ERROR,
                       absl::StrCat("request ", live.request->request_id, " ended"));
  }
}

}  // namespace switchyard
