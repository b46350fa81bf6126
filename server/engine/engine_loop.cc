#include "server/engine/engine_loop.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/env.h"
#include "scheduler/base/log.h"
#include "server/clock.h"

namespace switchyard {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);

WorkerGroup::Options GroupOptions(const ServerConfig& config) {
  WorkerGroup::Options options;
  options.world = config.num_workers();
  options.local_workers = config.local_workers;
  options.dtype = config.dtype;
  options.tokens = {config.join_token, config.local_token};
  options.step_timeout = config.step_timeout;
  options.row_timeout = config.row_timeout;
  return options;
}

// Adds what a total grew since it was last reported.
void Advance(prometheus::Counter* counter, int64_t now, int64_t before) {
  if (now > before) counter->Increment(static_cast<double>(now - before));
}

}  // namespace

EngineLoop::EngineLoop(const ServerConfig* config, const TextRoom* text, ServerMetrics* metrics, Hooks hooks)
    : config_(config),
      text_(text),
      metrics_(metrics),
      hooks_(std::move(hooks)),
      group_(GroupOptions(*config), this),
      residency_(config->placement, this),
      profiles_([this](int rank, int64_t request, int64_t offset) { AskForProfile(rank, request, offset); }),
      slices_(config->train_share) {}

EngineLoop::~EngineLoop() { Stop(); }

void EngineLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void EngineLoop::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void EngineLoop::Drain(absl::Duration timeout, std::function<void()> done) {
  Post([this, timeout, done = std::move(done)]() mutable {
    draining_ = true;
    hooks_.on_ready(false);
    drain_deadline_ = MonotonicNow() + timeout;
    drained_ = std::move(done);
  });
}

void EngineLoop::Dismiss() {
  Post([this] {
    draining_ = true;
    EndAll(Stopping());
    group_.Dismiss();
  });
}

bool EngineLoop::Post(Command command) {
  absl::MutexLock lock(&mu_);
  if (stopped_) return false;
  inbox_.push_back(std::move(command));
  return true;
}

void EngineLoop::Run() {
  std::vector<Command> commands;
  for (;;) {
    const absl::Time deadline = std::min(
        {next_tick_, gather_until_, slice_until_, scheduler_ ? scheduler_->NextDeadline() : absl::InfiniteFuture()});
    {
      absl::MutexLock lock(&mu_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !inbox_.empty(); };
      mu_.AwaitWithTimeout(absl::Condition(&wanted), deadline - MonotonicNow());
      if (stopping_) break;
      commands.swap(inbox_);
    }
    for (Command& command : commands) command();
    commands.clear();
    const absl::Time now = MonotonicNow();
    if (now >= next_tick_) Tick(now);
    std::vector<Event> events;
    PlanAll(now, &events);
    Publish(std::move(events), now);
  }
  RunLast();
}

// Answers everybody who still waits: who posted something, the live requests, the workers.
void EngineLoop::RunLast() {
  draining_ = true;
  std::vector<Command> commands;
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    commands.swap(inbox_);
  }
  for (Command& command : commands) command();
  profiles_.Fail(Stopping());
  EndAll(Stopping());
  for (const auto& [id, member] : group_.members()) member.client->Close(absl::UnavailableError("the server stops"));
  if (drained_) std::exchange(drained_, nullptr)();
}

void EngineLoop::Tick(absl::Time now) {
  next_tick_ = now + kTick;
  group_.Tick(now);
  residency_.Tick(now);
  profiles_.Tick(now);
  if (hooks_.on_tick) hooks_.on_tick(now);
  EndSlowReaders(now);
  if (!scheduler_) CheckStart(now);
  if (scheduler_ && GivenUp(now) && !live_.empty()) {
    std::vector<Event> events;
    scheduler_->LoseGroup(/*fail_waiting=*/true, now, &events);
    Publish(std::move(events), now);
  }
  if (draining_ && drained_ && (live_.empty() || now > drain_deadline_)) {
    EndAll(Stopping());
    std::exchange(drained_, nullptr)();
  }
  UpdateSnapshot();
}

// A burst's first step waits a little for the rest of it; `gather_until_` says until when.
bool EngineLoop::Gathering(absl::Time now) {
  if (step_sent_.empty()) {
    const SchedulerStats stats = scheduler_->Stats();
    if (stats.running == 0 && stats.waiting > 0) {
      const int64_t step_tokens = int64_t{scheduler_->policy().max_batched_tokens} * stats.ranks.size();
      const absl::Time opens = gather_window_.OpensAt(stats.waiting_tokens, step_tokens, now);
      if (now < opens) {
        gather_until_ = opens;
        return true;
      }
    }
  }
  gather_window_.Close();
  return false;
}

// Before the first group: the start must not wait for ever for a worker that does not come, or does not get on.
void EngineLoop::CheckStart(absl::Time now) {
  group_.NoteStart(now);
  if (now - group_.last_progress() <= config_->start_timeout || !hooks_.on_fatal) return;
  hooks_.on_fatal(WhyNoGroup());
}

std::string EngineLoop::WhyNoGroup() const {
  return absl::StrCat("no group of workers within --start_timeout=", absl::FormatDuration(config_->start_timeout), ": ",
                      group_.NotReadyReason());
}

// A lost group of which nothing came back for as long as the first one may take: nobody waits for it any more, until a
// worker makes progress again.
bool EngineLoop::GivenUp(absl::Time now) const {
  return group_.state() != WorkerGroup::State::kReady &&
         now - std::max(down_since_, group_.last_progress()) > config_->start_timeout;
}

// SY_DUMP_STEP: a file for each step's plan and one for its result.
void EngineLoop::DumpStep(int64_t epoch, int64_t step, const char* what, const std::string& text) {
  static const std::string directory = EnvString("SY_DUMP_STEP");
  std::ofstream(absl::StrCat(directory, "/epoch-", epoch, "-step-", step, "-", what, ".txt")) << text;
}

void EngineLoop::PlanAll(absl::Time now, std::vector<Event>* events) {
  if (!scheduler_) return;
  gather_until_ = slice_until_ = absl::InfiniteFuture();
  // Whoever is past its deadline hears of it from Plan.
  const bool may_wait = group_.state() == WorkerGroup::State::kReady && now < scheduler_->NextDeadline();
  if (may_wait && (Gathering(now) || WaitsForSlice(now))) return;
  while (group_.state() == WorkerGroup::State::kReady) {
    std::optional<StepPlan> plan = scheduler_->Plan(now, events);
    if (!plan) break;
    step_sent_[plan->step] = now;
    slices_.End(now);
    plan->placement_epoch = residency_.placement_epoch();
    if (dump_steps_) DumpStep(plan->group_epoch, plan->step, "plan", plan->DebugString());
    group_.Execute(*plan, now);
    residency_.StepPlanned(plan->step, now);
  }
  // Without a group Plan still ends what is past its deadline.
  if (group_.state() != WorkerGroup::State::kReady) {
    (void)scheduler_->Plan(now, events);
  } else if (step_sent_.empty()) {
    slices_.Idle();
    GiveSlice(now);
  }
}

// --train_share: steps wait until those under way are done, and then for a slice; `slice_until_` says until when.
bool EngineLoop::WaitsForSlice(absl::Time now) {
  if (!slices_.Owes(now)) return false;
  if (!step_sent_.empty()) return true;
  if (const SchedulerStats stats = scheduler_->Stats(); stats.running + stats.waiting == 0) return false;
  slice_until_ = slices_.PayOwed(now);
  GiveSlice(now);
  return true;
}

// No step is under way.
void EngineLoop::GiveSlice(absl::Time now) {
  if (const absl::Duration slice = slices_.Next(now); slice > absl::ZeroDuration()) group_.GiveSlice(slice);
}

void EngineLoop::UpdateSnapshot() {
  LoadSnapshot snapshot;
  snapshot.ready = group_.state() == WorkerGroup::State::kReady && !draining_;
  snapshot.not_ready_reason = draining_ ? "draining" : group_.NotReadyReason();
  snapshot.group_epoch = group_.epoch();
  if (scheduler_) snapshot.scheduler = scheduler_->Stats();
  for (const auto& [id, member] : group_.members()) {
    LoadSnapshot::Worker worker;
    worker.rank = member.rank;
    worker.pid = member.info.pid;
    worker.host = member.info.host;
    worker.metrics_address = member.info.metrics_address;
    worker.state = member.suspect ? "suspect" : member.ready ? "ready" : member.load_total > 0 ? "loading" : "starting";
    if (member.rank >= 0 && member.rank < static_cast<int>(snapshot.scheduler.ranks.size())) {
      worker.stats = snapshot.scheduler.ranks[member.rank];
    }
    snapshot.workers.push_back(std::move(worker));
  }
  const SchedulerStats& stats = snapshot.scheduler;
  metrics_->requests_running->Set(stats.running);
  metrics_->requests_waiting->Set(stats.waiting);
  metrics_->waiting_tokens->Set(static_cast<double>(stats.waiting_tokens));
  metrics_->kv_cache_usage->Set(stats.KvUsage());
  metrics_->ready->Set(snapshot.ready ? 1 : 0);
  metrics_->group_epoch->Set(static_cast<double>(snapshot.group_epoch));
  metrics_->workers->Set(static_cast<double>(snapshot.workers.size()));
  ReportPlacement();
  Advance(metrics_->preemptions, stats.preemptions, reported_.preemptions);
  Advance(metrics_->rows_lent, stats.rows_lent, reported_.rows_lent);
  Advance(metrics_->prefix_queries, stats.prefix_query_tokens, reported_.prefix_query_tokens);
  Advance(metrics_->prefix_hits, stats.prefix_hit_tokens, reported_.prefix_hit_tokens);
  Advance(metrics_->refused, stats.refused, reported_.refused);
  Advance(metrics_->generation_tokens, stats.generated_tokens, reported_.generated_tokens);
  ReportSlices();
  reported_ = stats;
  absl::MutexLock lock(&mu_);
  snapshot_ = std::move(snapshot);
}

void EngineLoop::ReportSlices() {
  const int64_t slices = slices_.num_slices();
  Advance(metrics_->train_slices, slices, std::exchange(reported_slices_, slices));
  const absl::Duration given = slices_.given(MonotonicNow());
  metrics_->train_slice_seconds->Increment(absl::ToDoubleSeconds(given - std::exchange(reported_slice_time_, given)));
}

std::shared_ptr<const ServedModel> EngineLoop::model() const {
  absl::MutexLock lock(&mu_);
  return model_;
}

LoadSnapshot EngineLoop::load() const {
  absl::MutexLock lock(&mu_);
  return snapshot_;
}

}  // namespace switchyard
