#include "server/jobs/run/job_runs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/log.h"

namespace switchyard::server {

absl::Status ServerStopsError() {
  return rpc::MakeError(absl::StatusCode::kUnavailable, v1::DRAINING, "the server is stopping");
}

void JobRuns::Begin(Job* job) {
  int slot = 0;
  const auto is_taken = [&slot](const auto& entry) { return entry.second.metrics_slot() == slot; };
  while (std::any_of(runs_.begin(), runs_.end(), is_taken)) ++slot;
  runs_.try_emplace(job->sequence, &context_, job, slot).first->second.Prepare();
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
    if (run.has_workers() || spec.on_serving_workers != on_serving_workers) continue;
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
  slices_.Tick(on_serving);
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
  if (!serves) client->Close(status);  // else it serves on
}

void JobRuns::OnTrainerHeartbeat(WorkerId id) { context_.pools->alone.Heartbeat(id, context_.host->Now()); }

JobRun* JobRuns::OfEpoch(int64_t epoch) {
  for (auto& [sequence, run] : runs_) {
    if (run.has_workers() && run.epoch() == epoch) return &run;
  }
  return nullptr;
}

RunProgress* JobRuns::Receive(WorkerId id, int64_t epoch) {
  JobRun* run = OfEpoch(epoch);
  return run == nullptr ? nullptr : run->Receive(id);
}

void JobRuns::OnTrainingStarted(WorkerId id, int64_t epoch, int64_t step, std::vector<std::string> warnings) {
  if (JobRun* run = OfEpoch(epoch); run != nullptr) run->OnStarted(id, step, warnings);
}

void JobRuns::OnTrainingStep(WorkerId id, int64_t epoch, jobs::TrainProgress progress) {
  if (RunProgress* run = Receive(id, epoch); run != nullptr) run->OnStep(progress);
}

void JobRuns::OnTrainingEvaluated(WorkerId id, int64_t epoch, jobs::EvaluationResult result) {
  if (RunProgress* run = Receive(id, epoch); run != nullptr) run->OnEvaluated(result);
}

void JobRuns::OnTrainingSaved(WorkerId id, int64_t epoch, jobs::SavedCheckpoint checkpoint) {
  if (RunProgress* run = Receive(id, epoch); run != nullptr) run->OnSaved(std::move(checkpoint));
}

void JobRuns::OnTrainingNote(WorkerId id, int64_t epoch, std::string text) {
  if (JobRun* run = OfEpoch(epoch); run != nullptr) run->OnNote(id, text);
}

void JobRuns::OnTrainingEnded(WorkerId id, int64_t epoch, jobs::TrainEnd end) {
  JobRun* run = OfEpoch(epoch);
  if (run == nullptr) return context_.pools->serving.OnEnded(id);
  run->OnEnded(id, std::move(end));
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

// The attempt's end, whose ranks have not all ended.
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
  if (!workers[0].info.also_trains) return;  // who was fenced is lost, and has ended the run, which is away
  run->ConcludeIfOver();
  RemoveIfOver(run);
}

}  // namespace switchyard::server
