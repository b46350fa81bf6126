#include "server/engine_loop.h"

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
// How long queued requests wait for a lost group to come back.
constexpr absl::Duration kRestartBudget = absl::Seconds(30);

BatchingPolicy PolicyFor(const ServerConfig& config, int32_t context) {
  BatchingPolicy policy = config.batching;
  policy.max_model_len = policy.max_model_len == 0 ? context : std::min(policy.max_model_len, context);
  return policy;
}

WorkerGroup::Options GroupOptions(const ServerConfig& config) {
  WorkerGroup::Options options;
  options.world = config.num_workers();
  options.join_token = config.join_token;
  options.step_timeout = config.step_timeout;
  options.row_timeout = config.row_timeout;
  return options;
}

// SY_DUMP_STEP: a file for each step's plan and one for its result.
void DumpStep(int64_t epoch, int64_t step, const char* what, const std::string& text) {
  static const std::string directory = EnvString("SY_DUMP_STEP");
  std::ofstream(absl::StrCat(directory, "/epoch-", epoch, "-step-", step, "-", what, ".txt")) << text;
}

// Adds what a total grew since it was last reported.
void Advance(prometheus::Counter* counter, int64_t now, int64_t before) {
  if (now > before) counter->Increment(static_cast<double>(now - before));
}

}  // namespace

EngineLoop::EngineLoop(const ServerConfig* config, const TextRoom* text, ServerMetrics* metrics, Hooks hooks)
    : config_(config), text_(text), metrics_(metrics), hooks_(std::move(hooks)), group_(GroupOptions(*config), this) {}

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
    const absl::Time deadline =
        std::min({next_tick_, gather_until_, scheduler_ ? scheduler_->NextDeadline() : absl::InfiniteFuture()});
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
  EndAll(Stopping());
  for (const auto& [id, member] : group_.members()) member.client->Close(absl::UnavailableError("the server stops"));
  if (drained_) std::exchange(drained_, nullptr)();
}

void EngineLoop::Tick(absl::Time now) {
  next_tick_ = now + kTick;
  group_.Tick(now);
  if (hooks_.on_tick) hooks_.on_tick(now);
  EndSlowReaders(now);
  if (!scheduler_) CheckStart(now);
  if (scheduler_ && group_.state() != WorkerGroup::State::kReady && now - down_since_ > kRestartBudget &&
      !live_.empty()) {
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
  gather_until_ = absl::InfiniteFuture();
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
  hooks_.on_fatal(absl::StrCat("no group of workers within --start_timeout=",
                               absl::FormatDuration(config_->start_timeout), ": ", group_.NotReadyReason()));
}

void EngineLoop::PlanAll(absl::Time now, std::vector<Event>* events) {
  if (!scheduler_) return;
  if (group_.state() == WorkerGroup::State::kReady && Gathering(now)) return;
  while (group_.state() == WorkerGroup::State::kReady) {
    std::optional<StepPlan> plan = scheduler_->Plan(now, events);
    if (!plan) break;
    step_sent_[plan->step] = now;
    if (dump_steps_) DumpStep(plan->group_epoch, plan->step, "plan", plan->DebugString());
    group_.Execute(*plan, now);
  }
  // Without a group Plan still ends what is past its deadline.
  if (group_.state() != WorkerGroup::State::kReady) (void)scheduler_->Plan(now, events);
}

void EngineLoop::OnEpoch(const std::string& store_token) { hooks_.on_epoch(store_token); }

void EngineLoop::PublishModel(int world, const WorkerInfo& info) {
  auto model = std::make_shared<ServedModel>();
  model->name = config_->served_model_name;
  model->architecture = info.architecture;
  model->dtype = info.dtype;
  model->weights_hash = info.weights_hash;
  model->vocab_size = info.vocab_size;
  model->max_model_len = scheduler_->max_context();
  model->num_layers = info.num_layers;
  model->num_moe_layers = info.num_moe_layers;
  model->num_experts = info.num_experts;
  model->experts_per_token = info.experts_per_token;
  model->num_workers = world;
  model->eos_token_ids = info.eos_token_ids;
  for (int32_t id : text_->defaults().eos_token_ids) {
    if (std::find(model->eos_token_ids.begin(), model->eos_token_ids.end(), id) == model->eos_token_ids.end()) {
      model->eos_token_ids.push_back(id);
    }
  }
  absl::MutexLock lock(&mu_);
  model_ = std::move(model);
}

// --max_model_len beyond what the model can: told to hooks_.on_fatal, and nothing is served meanwhile.
bool EngineLoop::Contradicts(int32_t context) const {
  return scheduler_ == nullptr && config_->batching.max_model_len > context;
}

void EngineLoop::OnGroupUp(int64_t epoch, int world, int32_t num_kv_blocks, const WorkerInfo& first) {
  if (Contradicts(first.context)) return;
  if (!scheduler_) {
    scheduler_ = std::make_unique<Scheduler>(PolicyFor(*config_, first.context));
    if (hooks_.on_first_group) hooks_.on_first_group();
  }
  const absl::Time now = MonotonicNow();
  std::vector<Event> events;
  GroupShape shape;
  shape.epoch = epoch;
  shape.num_ranks = world;
  shape.num_blocks = num_kv_blocks;
  shape.long_rope_above = first.long_rope_above;
  shape.min_loan_rows = first.min_loan_rows;
  scheduler_->StartGroup(shape, now, &events);
  const BatchingPolicy& policy = scheduler_->policy();
  metrics_->SetMaxModelLen(policy.max_model_len);
  metrics_->SetCacheConfig({.block_size = policy.block_size,
                            .num_blocks = int64_t{world} * num_kv_blocks,
                            .dtype = first.dtype,
                            .prefix_reuse = policy.prefix_reuse});
  PublishModel(world, first);
  UpdateSnapshot();
  hooks_.on_ready(!draining_);
  Publish(std::move(events), now);
}

void EngineLoop::OnGroupDown(const std::string& reason) {
  const absl::Time now = MonotonicNow();
  down_reason_ = reason;
  down_since_ = now;
  step_sent_.clear();
  metrics_->groups_lost->Increment();
  hooks_.on_ready(false);
  std::vector<Event> events;
  if (scheduler_) scheduler_->LoseGroup(/*fail_waiting=*/false, now, &events);
  Publish(std::move(events), now);
  UpdateSnapshot();
}

void EngineLoop::OnStepDone(const StepResult& result) {
  const absl::Time now = MonotonicNow();
  std::vector<Event> events;
  if (const absl::Status status = scheduler_->Commit(result, now, &events); !status.ok()) {
    group_.Break(absl::StrCat("step ", result.step, ": ", status.message()), now);
    return;
  }
  ObserveStep(result, now);
  if (dump_steps_) DumpStep(result.group_epoch, result.step, "result", result.DebugString());
  // The next plans first: the workers should not wait for text to be made.
  PlanAll(now, &events);
  Publish(std::move(events), now);
  metrics_->publish_seconds->Observe(absl::ToDoubleSeconds(MonotonicNow() - now));
}

void EngineLoop::ObserveStep(const StepResult& result, absl::Time now) {
  int64_t rows = 0, sent = 0, expert_rows = 0, most_rows = 0;
  double expert_seconds = 0, exchange_seconds = 0;
  for (const RankResult& rank : result.ranks) {
    rows += rank.rows;
    sent += rank.rows_sent;
    expert_rows += rank.expert_rows;
    most_rows = std::max(most_rows, rank.expert_rows);
    expert_seconds = std::max(expert_seconds, rank.timings.expert_seconds);
    exchange_seconds = std::max(exchange_seconds, rank.timings.exchange_seconds);
  }
  metrics_->iteration_tokens->Observe(static_cast<double>(rows));
  metrics_->expert_seconds->Observe(expert_seconds);
  metrics_->exchange_seconds->Observe(exchange_seconds);
  metrics_->moe_tokens_exchanged->Increment(static_cast<double>(sent));
  if (most_rows > 0) {
    metrics_->moe_balancedness->Observe(static_cast<double>(expert_rows) / static_cast<double>(result.ranks.size()) /
                                        static_cast<double>(most_rows));
  }
  if (const auto it = step_sent_.find(result.step); it != step_sent_.end()) {
    metrics_->step_seconds->Observe(absl::ToDoubleSeconds(now - it->second));
    gather_window_.Observe(rows, now - it->second);
    step_sent_.erase(it);
  }
}

void EngineLoop::OnLocalWorkerFenced(int local_index, int64_t pid) {
  metrics_->workers_fenced->Increment();
  hooks_.on_fenced(local_index, pid);
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
  Advance(metrics_->preemptions, stats.preemptions, reported_.preemptions);
  Advance(metrics_->rows_lent, stats.rows_lent, reported_.rows_lent);
  Advance(metrics_->prefix_queries, stats.prefix_query_tokens, reported_.prefix_query_tokens);
  Advance(metrics_->prefix_hits, stats.prefix_hit_tokens, reported_.prefix_hit_tokens);
  Advance(metrics_->refused, stats.refused, reported_.refused);
  Advance(metrics_->generation_tokens, stats.generated_tokens, reported_.generated_tokens);
  reported_ = stats;
  absl::MutexLock lock(&mu_);
  snapshot_ = std::move(snapshot);
}

std::shared_ptr<const ServedModel> EngineLoop::model() const {
  absl::MutexLock lock(&mu_);
  return model_;
}

LoadSnapshot EngineLoop::load() const {
  absl::MutexLock lock(&mu_);
  return snapshot_;
}

// --- what workers say: posted, then handled on the loop's thread ---

void EngineLoop::OnRegister(WorkerId id, std::shared_ptr<WorkerClient> client, WorkerInfo info) {
  Post([this, id, client = std::move(client), info = std::move(info)]() mutable {
    const int32_t context = info.context;
    const absl::Status status = group_.Register(id, client, std::move(info), MonotonicNow());
    if (!status.ok()) {
      LogWarn("worker ", id, " is refused: ", status.message());
      client->Close(status);
    } else if (Contradicts(context) && hooks_.on_fatal) {
      const std::string message = absl::StrCat("--max_model_len=", config_->batching.max_model_len,
                                               ": the model's context is ", context, " tokens");
      client->Close(absl::FailedPreconditionError(message));
      hooks_.on_fatal(message);
    }
  });
}

void EngineLoop::OnHeartbeat(WorkerId id, int64_t) {
  Post([this, id] { group_.Heartbeat(id, MonotonicNow()); });
}

void EngineLoop::OnLoadProgress(WorkerId id, int64_t done, int64_t total) {
  Post([this, id, done, total] { group_.LoadProgress(id, done, total, MonotonicNow()); });
}

void EngineLoop::OnGroupReady(WorkerId id, int64_t epoch, int32_t num_kv_blocks) {
  Post([this, id, epoch, num_kv_blocks] { group_.Ready(id, epoch, num_kv_blocks, MonotonicNow()); });
}

void EngineLoop::OnStepResult(WorkerId id, int64_t epoch, int64_t step, RankResult result) {
  Post([this, id, epoch, step, result = std::move(result)]() mutable {
    group_.Result(id, epoch, step, std::move(result), MonotonicNow());
  });
}

void EngineLoop::OnGroupFault(WorkerId id, int64_t epoch, std::string message) {
  Post([this, id, epoch, message = std::move(message)] { group_.Fault(id, epoch, message, MonotonicNow()); });
}

// A link ends when its process does: of a local one it is known how.
std::string EngineLoop::WhyLost(WorkerId id, const std::string& link_reason) const {
  const auto member = group_.members().find(id);
  if (member == group_.members().end() || member->second.info.local_index < 0 || !hooks_.end_of) return link_reason;
  const std::string end = hooks_.end_of(member->second.info.local_index, member->second.info.pid);
  return end.empty() ? link_reason : absl::StrCat("process ended with ", end);
}

void EngineLoop::OnLinkLost(WorkerId id, std::string reason) {
  Post([this, id, reason = std::move(reason)] { group_.Lost(id, WhyLost(id, reason), MonotonicNow()); });
}

}  // namespace switchyard
