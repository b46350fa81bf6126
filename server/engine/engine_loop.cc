#include "server/engine/engine_loop.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/clock.h"

namespace switchyard::server {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);

}  // namespace

EngineLoop::EngineLoop(const ServerConfig* config, const text::TextProcessor* text, ServerMetrics* metrics,
                       EngineHooks hooks)
    : config_(config),
      hooks_(std::move(hooks)),
      group_(config, text, metrics, &hooks_, &steps_),
      experts_(config),
      choices_(config, metrics),
      profiles_([this](int rank, int64_t request, int64_t offset) {
        if (WorkerClient* client = group_.ClientOf(rank))
          client->SendProfile(group_.workers().epoch(), request, offset);
      }),
      requests_(config, text->tokenizer(), metrics, &group_),
      slices_(config->train_share),
      load_(&group_, &requests_, &slices_, &choices_, metrics),
      steps_({.group = &group_,
              .requests = &requests_,
              .experts = &experts_,
              .choices = &choices_,
              .profiles = &profiles_,
              .slices = &slices_,
              .load = &load_,
              .masks = &masks_},
             metrics, &hooks_),
      links_(&inbox_, &group_, &experts_, &profiles_),
      masks_([this](batching::MaskAnswer answer, absl::Duration took) {
        inbox_.Post([this, answer = std::move(answer), took]() mutable { steps_.OnMask(std::move(answer), took); });
      }) {}

void EngineLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void EngineLoop::Stop() {
  inbox_.Stop();
  if (thread_.joinable()) thread_.join();
}

void EngineLoop::Run() {
  std::vector<EngineInbox::Command> commands;
  while (inbox_.Await(NextTurn(), &commands)) Turn(&commands);
  RunLast();
}

absl::Time EngineLoop::RunOnce() {
  std::vector<EngineInbox::Command> commands;
  if (!inbox_.Await(absl::InfinitePast(), &commands)) {
    RunLast();
    return absl::InfiniteFuture();
  }
  Turn(&commands);
  return NextTurn();
}

void EngineLoop::Turn(std::vector<EngineInbox::Command>* commands) {
  for (EngineInbox::Command& command : *commands) command();
  commands->clear();
  const absl::Time now = MonotonicNow();
  if (now >= next_tick_) Tick(now);
  steps_.Advance(now);
}

void EngineLoop::Tick(absl::Time now) {
  next_tick_ = now + kTick;
  group_.Tick(now);
  profiles_.Tick(now);
  if (hooks_.on_tick) hooks_.on_tick(now);
  requests_.Tick(now);
  load_.Update();
}

// Ends everything that still waits: posted commands, live requests, workers.
void EngineLoop::RunLast() {
  requests_.Refuse();
  for (EngineInbox::Command& command : inbox_.Close()) command();
  profiles_.Fail(ServerStops());
  requests_.EndAll();
  for (const auto& [id, member] : group_.workers().members()) {
    member.client->Close(absl::UnavailableError("the server stops"));
  }
  requests_.FinishDrain();
}

void EngineLoop::Drain(absl::Duration timeout, std::function<void()> done) {
  inbox_.Post([this, timeout, done = std::move(done)]() mutable {
    requests_.Drain(MonotonicNow() + timeout, std::move(done));
    hooks_.on_ready(false);
  });
}

void EngineLoop::Dismiss() {
  inbox_.Post([this] {
    requests_.Refuse();
    requests_.EndAll();
    group_.workers().Dismiss();
  });
}

void EngineLoop::Submit(uint64_t handle, std::unique_ptr<InferenceRequest> request,
                        std::shared_ptr<TokenStream> stream) {
  const bool posted = inbox_.Post([this, handle, request = std::move(request), stream]() mutable {
    requests_.Submit(handle, std::move(request), std::move(stream));
  });
  if (!posted) stream->Close(ServerStops());
}

void EngineLoop::Cancel(uint64_t handle, absl::Status status) {
  inbox_.Post([this, handle, status = std::move(status)] { requests_.Cancel(handle, status); });
}

void EngineLoop::Abort(std::string request_id, std::function<void(bool)> done, Caller caller) {
  const bool posted = inbox_.Post([this, request_id = std::move(request_id), done, caller = std::move(caller)] {
    done(requests_.Abort(request_id, caller));
  });
  if (!posted) done(false);
}

void EngineLoop::CopyExperts(std::function<void(std::unique_ptr<const ExpertsCopy>)> done) {
  const bool posted = inbox_.Post([this, done] { done(experts_.Copy()); });
  if (!posted) done(nullptr);
}

void EngineLoop::CopyChoices(std::function<void(std::unique_ptr<const ChoicesCopy>)> done) {
  const bool posted = inbox_.Post([this, done] { done(std::make_unique<const ChoicesCopy>(choices_.Copy())); });
  if (!posted) done(nullptr);
}

void EngineLoop::CollectProfile(ProfileCollector::Call call) {
  auto shared = std::make_shared<ProfileCollector::Call>(std::move(call));  // shared with the command
  const bool posted = inbox_.Post([this, shared] {
    if (requests_.draining()) return shared->done(ServerStops());
    if (!group_.ready()) {
      return shared->done(WorkersLost(absl::StrCat("no group stands: ", group_.down_reason())));
    }
    if (profiles_.busy()) {
      return shared->done(
          rpc::WithRetry(rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL,
                                        "another call asks the workers what they learned: one at a time"),
                         absl::Seconds(1)));
    }
    profiles_.Start(config_->workers, std::move(*shared), MonotonicNow());
  });
  if (!posted) shared->done(ServerStops());
}

}  // namespace switchyard::server
