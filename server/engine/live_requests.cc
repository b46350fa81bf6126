#include "server/engine/live_requests.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/clock.h"
#include "server/observe/observed_request.h"

namespace switchyard::server {

absl::Status ServerStops() {
  return rpc::MakeError(absl::StatusCode::kUnavailable, v1::DRAINING, "the server is stopping; try another one");
}

void LiveRequests::Submit(uint64_t handle, std::unique_ptr<InferenceRequest> request,
                          std::shared_ptr<TokenStream> stream) {
  const absl::Time now = MonotonicNow();
  absl::Status status = Admit(*request, now);
  if (status.ok()) {
    request->id = handle;
    status = group_->scheduler()->Submit(*request, now);
    if (!status.ok()) status = Refusal(status);
  }
  if (!status.ok()) {
    metrics_->request_error(status.code()).Increment();
    stream->Close(status);
    return;
  }
  by_request_id_[RequestKey(request->owner, request->request_id)] = handle;
  live_[handle] = std::make_unique<LiveRequest>(std::move(request), std::move(stream), tokenizer_, metrics_);
}

absl::Status LiveRequests::Admit(const InferenceRequest& request, absl::Time now) const {
  if (draining_) return ServerStops();
  if (group_->scheduler() == nullptr) return LoadingError(*config_, group_->NotReadyReason());
  // While a lost group forms anew, requests queue within the queue's bound and their deadlines.
  if (group_->GivenUp(now)) return group_->GivenUpError();
  if (by_request_id_.contains(RequestKey(request.owner, request.request_id))) {
    return rpc::MakeError(absl::StatusCode::kAlreadyExists, v1::REQUEST_EXISTS,
                          absl::StrCat("request_id ", Quote(request.request_id), " belongs to a running request"),
                          {{"field", "request_id"}});
  }
  return absl::OkStatus();
}

// Returns the API's error for the scheduler's refusal.
absl::Status LiveRequests::Refusal(const absl::Status& status) const {
  const batching::Scheduler& scheduler = *group_->scheduler();
  if (absl::IsResourceExhausted(status)) {
    return rpc::WithRetry(rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL, status.message(),
                                         {{"limit", absl::StrCat(scheduler.policy().max_queue)}}),
                          scheduler.RetryAfter());
  }
  if (absl::IsInvalidArgument(status))
    return rpc::MakeError(status.code(), v1::PROMPT_TOO_LONG, status.message(), {{"field", "prompt"}});
  if (absl::IsFailedPrecondition(status)) {
    return rpc::MakeError(status.code(), v1::CONSTRAINT_FAILED, absl::StrCat("constraint: ", status.message()),
                          {{"field", "constraint"}});
  }
  return status;
}

void LiveRequests::CancelAllChoices(uint64_t handle) {
  const absl::Time now = MonotonicNow();
  std::vector<batching::Event> events;
  group_->scheduler()->Cancel(handle, batching::Scheduler::kAllChoices, batching::FinishReason::kAbort, now, &events);
  Publish(std::move(events), now);
}

void LiveRequests::Cancel(uint64_t handle, const absl::Status& status) {
  const auto it = live_.find(handle);
  if (it == live_.end()) return;
  it->second->set_error(status);
  CancelAllChoices(handle);
}

bool LiveRequests::Abort(const std::string& request_id, const Caller& caller) {
  std::vector<uint64_t> handles;
  if (const auto it = by_request_id_.find(RequestKey(caller.name, request_id)); it != by_request_id_.end())
    handles.push_back(it->second);
  if (!caller.name.empty() && caller.role == Role::kAdmin) {
    for (const auto& [handle, live] : live_) {
      const InferenceRequest& request = live->request();
      if (request.request_id == request_id && request.owner != caller.name) handles.push_back(handle);
    }
  }
  for (const uint64_t handle : handles) CancelAllChoices(handle);
  return !handles.empty();
}

void LiveRequests::Tick(absl::Time now) {
  if (const absl::Duration pause = server_stall_.Look(now); pause > absl::ZeroDuration()) {
    for (const auto& [handle, live] : live_) live->Forgive(pause, now);
  }
  std::vector<uint64_t> slow;
  for (const auto& [handle, live] : live_) {
    if (now - live->UnreadSince() > config_->slow_client_timeout) slow.push_back(handle);
  }
  for (uint64_t handle : slow) Cancel(handle, SlowReader(config_->slow_client_timeout));
  if (!live_.empty() && group_->GivenUp(now)) {
    std::vector<batching::Event> events;
    group_->scheduler()->LoseGroup(/*fail_waiting=*/true, now, &events);
    Publish(std::move(events), now);
  }
  if (drained_ && (live_.empty() || now > drain_deadline_)) {
    EndAll();
    FinishDrain();
  }
}

void LiveRequests::Drain(absl::Time deadline, std::function<void()> done) {
  draining_ = true;
  drain_deadline_ = deadline;
  drained_ = std::move(done);
}

void LiveRequests::EndAll() {
  std::vector<uint64_t> rest;
  for (const auto& [handle, live] : live_) rest.push_back(handle);
  for (uint64_t handle : rest) Cancel(handle, ServerStops());
}

void LiveRequests::FinishDrain() {
  if (drained_) std::exchange(drained_, nullptr)();
}

void LiveRequests::Publish(std::vector<batching::Event> events, absl::Time now) {
  // A completed stop string cancels its choice, which adds events.
  while (!events.empty()) {
    std::vector<batching::Event> more;
    for (batching::Event& event : events) PublishOne(std::move(event), now, &more);
    events = std::move(more);
  }
  for (uint64_t handle : std::exchange(touched_, {})) {
    const auto it = live_.find(handle);
    if (it == live_.end()) continue;
    it->second->Flush(now);
    if (it->second->over()) End(handle, it->second.get(), now);
  }
}

void LiveRequests::PublishOne(batching::Event event, absl::Time now, std::vector<batching::Event>* more) {
  const auto it = live_.find(event.request);
  if (it == live_.end()) return;
  LiveRequest* live = it->second.get();
  const int choice = event.choice;
  if (live->ended(choice)) return;
  touched_.push_back(event.request);
  if (auto* token = std::get_if<batching::TokenEvent>(&event.what)) {
    if (token->index == 0) ObserveFirstToken(live, choice, *token);
    if (!live->TakeToken(choice, std::move(*token), now)) return;
    group_->scheduler()->Cancel(event.request, choice, batching::FinishReason::kStop, now, more);
  } else if (auto* prompt = std::get_if<batching::PromptLogprobsEvent>(&event.what)) {
    live->TakePromptLogprobs(choice, std::move(*prompt));
  } else if (auto* paths = std::get_if<batching::ExpertPathsEvent>(&event.what)) {
    live->TakePaths(choice, std::move(*paths));
  } else {
    const auto& finished = std::get<batching::FinishedEvent>(event.what);
    ObserveEnd(*live, choice, finished);
    const bool clean = live->TakeFinished(choice, finished);
    if (!clean && live->error().ok()) live->set_error(ErrorOf(*live, finished.reason));
  }
}

void LiveRequests::ObserveFirstToken(LiveRequest* live, int choice, const batching::TokenEvent& token) const {
  const ObservedRequest* const observed = live->request().observed.get();
  if (choice != 0 || observed == nullptr || !observed->traced()) return;
  live->prefill_times = worker_times_.Since(token.scheduled);
  live->at_first_token = worker_times_.totals();
}

void LiveRequests::ObserveEnd(const LiveRequest& live, int choice, const batching::FinishedEvent& finished) const {
  ObservedRequest* const observed = live.request().observed.get();
  if (observed == nullptr) return;
  ChoiceRecord record = {.choice = choice,
                         .reason = live.EndOf(choice, finished.reason),
                         .usage = finished.usage,
                         .timings = finished.timings};
  if (observed->traced()) {
    record.prefill_worker = NameOfRank(finished.usage.prefill_rank);
    record.decode_worker = NameOfRank(finished.usage.last_rank);
  }
  if (choice == 0 && !live.prefill_times.empty()) {
    record.prefill_times = live.prefill_times;
    record.decode_times = worker_times_.Since(live.at_first_token);
  }
  observed->AddChoice(std::move(record));
}

WorkerName LiveRequests::NameOfRank(int32_t rank) const {
  WorkerName name = {.rank = rank};
  for (const auto& [id, member] : group_->workers().members()) {
    if (rank < 0 || member.rank != rank) continue;
    name.host = member.info.host;
    name.pid = member.info.pid;
    name.device = member.info.device;
  }
  return name;
}

void LiveRequests::End(uint64_t handle, LiveRequest* live, absl::Time now) {
  // Other choices may still run when one has failed.
  std::vector<batching::Event> ignored;
  group_->scheduler()->Cancel(handle, batching::Scheduler::kAllChoices, batching::FinishReason::kAbort, now, &ignored);
  live->Close(now);
  by_request_id_.erase(RequestKey(live->request().owner, live->request().request_id));
  live_.erase(handle);
}

absl::Status LiveRequests::ErrorOf(const LiveRequest& live, batching::FinishReason reason) const {
  switch (reason) {
    case batching::FinishReason::kDeadline:
      return rpc::MakeError(
          absl::StatusCode::kDeadlineExceeded, v1::DEADLINE,
          absl::StrCat("the request's deadline passed (one without gets the server's --default_deadline, ",
                       absl::FormatDuration(config_->default_deadline), ")",
                       group_->ready()
                           ? std::string()
                           : absl::StrCat("; no group of workers stands: ", group_->workers().NotReadyReason(), "; ",
                                          group_->down_reason())));
    case batching::FinishReason::kError:
      return rpc::MakeError(absl::StatusCode::kDataLoss, v1::NUMERIC_ERROR,
                            "the model computed NaN or Inf for this request");
    case batching::FinishReason::kConstraint:
      return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::CONSTRAINT_FAILED,
                            "no token of the vocabulary goes on with what the constraint allows, or finding those that "
                            "do takes too long",
                            {{"field", "constraint"}});
    case batching::FinishReason::kPoisoned:
      return rpc::MakeError(absl::StatusCode::kInternal, v1::KILLS_WORKERS,
                            absl::StrCat("workers were lost ", batching::Sequence::kSuspectAfter + 1,
                                         " times in a row while they ran this request, the last time apart from other "
                                         "suspects: ",
                                         group_->down_reason()));
    case batching::FinishReason::kUnavailable:
      if (group_->GivenUp(MonotonicNow())) return group_->GivenUpError();
      return WorkersLost(absl::StrCat("the workers' group was lost: ", group_->down_reason()));
    default:
      return rpc::MakeError(absl::StatusCode::kInternal, v1::ENGINE_ERROR,
                            absl::StrCat("request ", live.request().request_id, " ended"));
  }
}

}  // namespace switchyard::server
