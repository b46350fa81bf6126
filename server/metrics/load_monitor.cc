#include "server/metrics/load_monitor.h"

#include <utility>

#include "scheduler/base/clock.h"

namespace switchyard::server {
namespace {

// Adds the growth of a total since the last report.
void Advance(prometheus::Counter* counter, int64_t now, int64_t before) {
  if (now > before) counter->Increment(static_cast<double>(now - before));
}

}  // namespace

void LoadMonitor::Update() {
  const WorkerGroup& workers = group_->workers();
  const bool draining = requests_->draining();
  LoadSnapshot snapshot;
  snapshot.ready = (group_->ready() || group_->only_trains()) && !draining;
  snapshot.not_ready_reason = draining ? "draining" : snapshot.ready ? "" : group_->NotReadyReason();
  snapshot.group_epoch = workers.epoch();
  if (const batching::Scheduler* scheduler = group_->scheduler()) snapshot.scheduler = scheduler->Stats();
  for (const auto& [id, member] : workers.members()) {
    const bool has_stats = member.rank >= 0 && member.rank < static_cast<int>(snapshot.scheduler.ranks.size());
    snapshot.workers.push_back({
        .rank = member.rank,
        .pid = member.info.pid,
        .host = member.info.host,
        .state = member.suspect          ? "suspect"
                 : member.ready          ? "ready"
                 : member.load.epoch > 0 ? "loading"
                                         : "starting",
        .metrics_address = member.info.metrics_address,
        .stats = has_stats ? snapshot.scheduler.ranks[member.rank] : batching::RankStats(),
    });
  }
  const auto shown = [](const batching::StepTrial& trial) {
    return LoadSnapshot::Trial{
        .steps = trial.steps(), .other_steps = trial.other_steps(), .gained_seconds = trial.gained_seconds()};
  };
  if (choices_->tries_placement()) snapshot.placement = shown(choices_->placement());
  if (choices_->micro_batches().steps() > 0) snapshot.micro_batches = shown(choices_->micro_batches());
  metrics_->requests_running->Set(snapshot.scheduler.running);
  metrics_->requests_waiting->Set(snapshot.scheduler.waiting);
  metrics_->waiting_tokens->Set(static_cast<double>(snapshot.scheduler.waiting_tokens));
  metrics_->kv_cache_usage->Set(snapshot.scheduler.KvUsage());
  metrics_->ready->Set(snapshot.ready ? 1 : 0);
  metrics_->group_epoch->Set(static_cast<double>(snapshot.group_epoch));
  metrics_->workers->Set(static_cast<double>(snapshot.workers.size()));
  choices_->ReportMetrics();
  const batching::SchedulerStats& stats = snapshot.scheduler;
  Advance(metrics_->preemptions, stats.preemptions, reported_.preemptions);
  Advance(metrics_->outlived_losses, stats.outlived_losses, reported_.outlived_losses);
  Advance(metrics_->rows_given, stats.rows_given, reported_.rows_given);
  Advance(metrics_->prefix_queries, stats.prefix_query_tokens, reported_.prefix_query_tokens);
  Advance(metrics_->prefix_hits, stats.prefix_hit_tokens, reported_.prefix_hit_tokens);
  Advance(metrics_->rejected_for_tokens, stats.refused_for_tokens, reported_.refused_for_tokens);
  Advance(metrics_->rejected_for_requests, stats.refused - stats.refused_for_tokens,
          reported_.refused - reported_.refused_for_tokens);
  Advance(metrics_->generation_tokens, stats.generated_tokens, reported_.generated_tokens);
  reported_ = stats;
  const int64_t slices = slices_->num_slices();
  Advance(metrics_->train_slices, slices, std::exchange(reported_slices_, slices));
  const absl::Duration given = slices_->given(MonotonicNow());
  metrics_->train_slice_seconds->Increment(absl::ToDoubleSeconds(given - std::exchange(reported_slice_time_, given)));
  absl::MutexLock lock(&mu_);
  snapshot_ = std::move(snapshot);
}

LoadSnapshot LoadMonitor::load() const {
  absl::MutexLock lock(&mu_);
  return snapshot_;
}

}  // namespace switchyard::server
