#include "server/jobs/run/job_runs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/log.h"

namespace switchyard::server {
namespace {

constexpr char kWaitsForServing[] = "waits for serving";
constexpr absl::Duration kStarves = absl::Seconds(2);

}  // namespace

absl::Status ServerStopsError() {
  return rpc::MakeError(absl::StatusCode::kUnavailable, v1::DRAINING, "the server is stopping");
}

void JobRuns::Begin(Job* job, bool early) {
  int slot = early ? TrainingCounts::kSlots : 0;  // a job without steps has no metrics
  const auto is_used = [&slot](const auto& entry) { return entry.second.metrics_slot() == slot; };
  while (!early && std::any_of(runs_.begin(), runs_.end(), is_used)) ++slot;
  runs_.try_emplace(job->sequence, &context_, job, slot, early).first->second.Prepare();
}

bool JobRuns::IsEarly(const Job& job) const {
  const auto it = runs_.find(job.sequence);
  return it != runs_.end() && it->second.early();
}

int JobRuns::NumEarly() const {
  return static_cast<int>(
      std::count_if(runs_.begin(), runs_.end(), [](const auto& entry) { return entry.second.early(); }));
}

void JobRuns::ForEach(const std::function<void(JobRun*)>& visit) {
  std::vector<int64_t> sequences;
  for (const auto& [sequence, run] : runs_) sequences.push_back(sequence);
  for (const int64_t sequence : sequences) visit(&runs_.at(sequence));
}

void JobRuns::RemoveIfOver(const JobRun* run) {
  if (run->over()) runs_.erase(run->job().sequence);
}

void JobRuns::StopAsAsked(const Job& job) {
  const auto it = runs_.find(job.sequence);
  if (it == runs_.end()) return;
  it->second.StopAsAsked();
  RemoveIfOver(&it->second);
}

int JobRuns::NumAwaited(bool on_serving_workers) const {
  int awaited = 0;
  for (const auto& [sequence, run] : runs_) {
    const jobs::JobSpec& spec = run.job().spec;
    if (run.has_workers() || run.early() || spec.on_serving_workers != on_serving_workers) continue;
    awaited += context_.pools->Of(spec).Cost(spec.workers);
  }
  return awaited;
}

void JobRuns::Tick() {
  const absl::Time now = context_.host->Now();
  JobRun* on_serving = nullptr;
  for (auto& [sequence, run] : runs_) {
    if (run.has_workers() && run.job().spec.on_serving_workers) on_serving = &run;
  }
  WatchSlices(on_serving, now);
  TrainerPool& alone = context_.pools->alone;
  const auto has_unread = [this](const fleet::WorkerInfo& info) { return context_.host->HasUnread(info); };
  for (const WorkerId id : alone.Silent(now, has_unread)) {
    const TrainingWorker silent = alone.trainers().at(id);
    Fence(silent, "silent for too long");
  }
  ForEach([this, now](JobRun* run) {
    const std::vector<TrainingWorker> given_up = run->Tick(now);
    if (!given_up.empty()) return GiveUp(run, given_up);
    RemoveIfOver(run);
  });
}

void JobRuns::WatchSlices(JobRun* run, absl::Time now) {
  const absl::Time before = std::exchange(watched_at_, now);
  const absl::Duration given = context_.host->ShareServing(run != nullptr);
  const absl::Duration got = given - std::exchange(given_, given);
  if (run == nullptr || before == absl::InfinitePast() || got > absl::ZeroDuration()) last_slice_at_ = now;
  if (run == nullptr || before == absl::InfinitePast()) return;
  if (const absl::Duration missed = now - before - got; missed > absl::ZeroDuration()) run->Postpone(missed, now);
  if (now - last_slice_at_ > kStarves) {
    run->Note(kWaitsForServing);
  } else if (run->job().note == kWaitsForServing) {
    run->Note("");
  }
}

void JobRuns::Drain() {
  draining_ = true;
  ForEach([this](JobRun* run) {
    run->Drain();
    RemoveIfOver(run);
  });
}

void JobRuns::FillSlots(TrainingCounts* counts) const {
  counts->slots.clear();
  for (const auto& [sequence, run] : runs_) {
    const Job& job = run.job();
    if (run.metrics_slot() >= TrainingCounts::kSlots || !run.progress().has_steps() || !job.progress.has_value()) {
      continue;
    }
    TrainingCounts::Slot& slot = counts->slots[run.metrics_slot()];
    slot.job = job.id;
    slot.progress = *job.progress;
    slot.evaluated = job.evaluation.has_value();
    if (slot.evaluated) slot.evaluation = *job.evaluation;
    const int64_t since = job.checkpoint.has_value() ? job.checkpoint->saved_unix_ms : job.started_unix_ms;
    slot.checkpoint_step = job.checkpoint.has_value() ? job.checkpoint->step : 0;
    slot.checkpoint_age_seconds = std::max(0.0, static_cast<double>(context_.host->UnixMs() - since) / 1000);
  }
}

JobRun* JobRuns::OfJob(const std::string& job_id) {
  const Job* job = context_.book->Find(job_id);
  const auto it = job == nullptr ? runs_.end() : runs_.find(job->sequence);
  return it == runs_.end() ? nullptr : &it->second;
}

void JobRuns::OnPrepareProgress(const std::string& job_id, int64_t done, int64_t total) {
  if (JobRun* run = OfJob(job_id); run != nullptr) run->OnPrepareProgress(done, total);
}

void JobRuns::OnPrepared(const std::string& job_id, const absl::StatusOr<PackedData>& packed) {
  JobRun* run = OfJob(job_id);
  if (run == nullptr) return;
  run->OnPrepared(packed);
  RemoveIfOver(run);
}

void JobRuns::OnTrainer(WorkerId id, std::shared_ptr<TrainerClient> client, fleet::WorkerInfo info) {
  const bool serves = info.also_trains;
  TrainerPool& pool = serves ? context_.pools->serving : context_.pools->alone;
  const absl::Status status =
      draining_ ? ServerStopsError() : pool.Register(id, client, std::move(info), context_.host->Now());
  if (status.ok()) return;
  LogWarn("training worker ", id, " is refused: ", status.message());
  if (!serves) client->Close(status);  // a worker that serves keeps its link
}

void JobRuns::OnTrainerHeartbeat(WorkerId id) { context_.pools->alone.Heartbeat(id, context_.host->Now()); }

JobRun* JobRuns::OfEpoch(int64_t epoch) {
  for (auto& [sequence, run] : runs_) {
    if (run.has_workers() && run.epoch() == epoch) return &run;
  }
  return nullptr;
}

void JobRuns::OnTraining(WorkerId id, int64_t epoch, TrainingReport report) {
  JobRun* run = OfEpoch(epoch);
  if (run == nullptr) {
    if (std::holds_alternative<jobs::TrainEnd>(report)) context_.pools->serving.OnEnded(id);
    return;
  }
  run->Receive(id, std::move(report));
  RemoveIfOver(run);
}

void JobRuns::OnTrainerLost(WorkerId id, std::string reason) {
  const std::optional<TrainingWorker> trainer = context_.pools->Remove(id);
  if (!trainer.has_value()) return;
  const std::string end = context_.host->EndOf(trainer->info.local_index, trainer->info.pid);
  if (!end.empty()) reason = absl::StrCat("process ended with ", end);
  LogWarn("training worker ", id, " (pid ", trainer->info.pid, ") is lost: ", reason);
  for (auto& [sequence, run] : runs_) {
    if (!run.HasWorker(id)) continue;
    run.OnLost(id, reason);
    return RemoveIfOver(&run);
  }
}

void JobRuns::Fence(const TrainingWorker& trainer, const std::string& why) {
  LogWarn("training worker ", trainer.id, " (pid ", trainer.info.pid, ") is fenced: ", why);
  trainer.client->Close(absl::DeadlineExceededError(why));
  context_.host->KillWorker(trainer.info.local_index, trainer.info.pid);
  OnTrainerLost(trainer.id, why);
}

// Ends an attempt whose ranks have not all ended.
void JobRuns::GiveUp(JobRun* run, const std::vector<TrainingWorker>& workers) {
  for (const TrainingWorker& trainer : workers) {
    if (!trainer.info.also_trains) {
      Fence(trainer, "did not end when it was told");
      continue;
    }
    LogWarn("training on worker ", trainer.id, " (pid ", trainer.info.pid,
            ") did not end when it was told; no job begins there until it does");
    context_.pools->serving.Strand(trainer.id);
  }
  if (!workers[0].info.also_trains) return;  // fencing has lost the workers, which ended and removed the run
  run->ConcludeIfOver();
  RemoveIfOver(run);
}

}  // namespace switchyard::server
