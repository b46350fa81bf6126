// From the queue to its workers: whose turn it is, its text as tokens, its attempt sent out.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/log.h"
#include "scheduler/jobs/token_targets.h"
#include "server/jobs/job_manager.h"

namespace switchyard {
namespace {

// In the job's folder: what its text became, datasets and evaluation.
constexpr const char* kPackedNames[] = {"datasets.bin", "evaluation.bin"};
constexpr int kPackedFiles = 2;
constexpr int kDatasets = 0;  // of them
constexpr absl::Duration kJournalPause = absl::Seconds(1);

const std::vector<std::string>& FilesOf(const JobSpec& spec, int kind) {
  return kind == 0 ? spec.datasets : spec.evaluation;
}

std::vector<std::string> NamesOf(const JobSpec& spec, int kind, bool text) {
  std::vector<std::string> names;
  for (const std::string& name : FilesOf(spec, kind)) {
    if (absl::EndsWith(name, ".jsonl") == text) names.push_back(name);
  }
  return names;
}

// Tokens as they are, then what was made of text.
std::vector<TrainFile> DataOf(const JobSpec& spec, int kind) {
  std::vector<TrainFile> data;
  for (const std::string& name : NamesOf(spec, kind, /*text=*/false)) data.push_back({.of_job = false, .name = name});
  if (data.size() < FilesOf(spec, kind).size()) data.push_back({.of_job = true, .name = kPackedNames[kind]});
  return data;
}

// Of tokens as they are and of what was made of text; a spec without text was checked when it was submitted.
absl::Status CheckBatch(const JobSpec& spec, const PackedData& packed) {
  const int64_t tokens = packed.tokens + packed.counted_tokens;
  const int64_t batch = spec.batch_sequences * spec.sequence_length + 1;
  if (tokens >= batch) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_FILE,
                   absl::StrCat("datasets: dataset has ", tokens, " tokens, batch needs ", batch),
                   {{"field", "spec.datasets"}, {"limit", absl::StrCat(batch)}, {"actual", absl::StrCat(tokens)}});
}

// Files of tokens beside the text may have targets: whether one is in a window the workers find out before step 1.
absl::Status CheckTargets(const JobSpec& spec, int kind, const PackedData& packed) {
  if (packed.trained_tokens > 0 || !NamesOf(spec, kind, /*text=*/false).empty()) return absl::OkStatus();
  const char* const field = kind == kDatasets ? "datasets" : "evaluation";
  const absl::Status none = NoTargetError(FilesOf(spec, kind).size(), packed.tokens, spec.sequence_length);
  return MakeError(none.code(), v1::BAD_FILE, absl::StrCat(field, ": ", none.message()),
                   {{"field", absl::StrCat("spec.", field)}});
}

// Whether the same would happen again.
bool IsFault(const absl::Status& status) {
  if (ReasonOf(status) == v1::TEXT_LIMIT) return true;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

}  // namespace

void JobManager::NoteJournal(Job* job) {
  Note(job, absl::StrCat("waits for the journal: ", book_.journal_status().message()));
}

void JobManager::Admit() {
  if (draining_) return;
  if (!book_.clean()) {
    for (const auto& [sequence, job] : book_.jobs()) {
      if (job->state == JobState::kPending) NoteJournal(job.get());
    }
    return;
  }
  // Of workers that train alone, and of those that serve as well.
  struct Room {
    int available = 0;
    bool held = false;  // whoever is first keeps others from what it waits for
  };
  Room alone = {pool_.NumIdle()}, serving = {serving_.NumIdle()};
  const auto room_of = [&](const Job* job) -> Room& { return job->spec.on_serving_workers ? serving : alone; };
  for (const auto& [sequence, run] : runs_) {
    if (run.attempt == nullptr) room_of(run.job).available -= PoolOf(run.job->spec).Cost(run.job->spec.workers);
  }
  std::vector<Job*> waiting;
  for (const auto& [sequence, job] : book_.jobs()) {
    if (job->state == JobState::kPending) waiting.push_back(job.get());
  }
  std::sort(waiting.begin(), waiting.end(), [](const Job* a, const Job* b) { return a->queued < b->queued; });
  for (Job* job : waiting) {
    const int wanted = job->spec.workers;
    const TrainerPool& pool = PoolOf(job->spec);
    Room& room = room_of(job);
    if (room.held) continue;
    if (wanted > pool.configured()) {  // of an earlier server, which had more
      Note(job, absl::StrCat("needs ", wanted, " workers, this server has ", pool.configured(),
                             job->spec.on_serving_workers ? " that serve and train" : ""));
      continue;
    }
    const auto pause = not_before_.find(job->sequence);
    const bool pauses = pause != not_before_.end() && host_->Now() < pause->second;
    if (wanted > room.available) {
      Note(job, absl::StrCat("waits for workers: ", std::max(room.available, 0), " of ", wanted, " are free"));
      room.held = true;
      continue;
    }
    room.available -= pool.Cost(wanted);
    if (pauses) {
      Note(job, "pauses after a loss");
      continue;
    }
    not_before_.erase(job->sequence);
    if (!book_.Move(job, JobEvent::kAdmit, "it is its turn", host_->UnixMs()).ok()) return NoteJournal(job);
    Run run;
    run.job = job;
    run.slot = FreeSlot();
    run.ran_before_ms = job->ran_ms;
    Prepare(&(runs_[job->sequence] = std::move(run)));
  }
}

int JobManager::FreeSlot() const {
  int slot = 0;
  while (std::any_of(runs_.begin(), runs_.end(), [slot](const auto& entry) { return entry.second.slot == slot; })) {
    ++slot;
  }
  return slot;
}

void JobManager::Note(Job* job, const std::string& note) {
  if (job->note == note) return;
  job->note = note;
  book_.Tell(*job);
}

void JobManager::Prepare(Run* run) {
  Job* job = run->job;
  for (; job->files_ready < kPackedFiles; ++job->files_ready) {
    const int kind = job->files_ready;
    PackRequest request;
    request.inputs = NamesOf(job->spec, kind, /*text=*/true);
    if (request.inputs.empty()) continue;
    if (kind == kDatasets) request.counted = NamesOf(job->spec, kind, /*text=*/false);
    request.output_root = PackRoot::kCheckpoints;
    request.output = absl::StrCat(job->id, "/", kPackedNames[kind]);
    request.replace = true;  // an earlier try's, not known to be whole
    request.tokenizer = job->spec.base_checkpoint.empty() ? job->spec.architecture : job->spec.base_checkpoint;
    run->packing = true;
    Note(job, absl::StrCat("turns text into tokens: ", kPackedNames[kind]));
    return host_->Prepare(job->id, std::move(request));
  }
  TryStart(run);
}

void JobManager::OnPrepareProgress(const std::string& job_id, int64_t done, int64_t total) {
  Job* job = book_.Find(job_id);
  if (job == nullptr || !runs_.contains(job->sequence) || !runs_.at(job->sequence).packing) return;
  job->prepared_bytes = done;
  job->prepare_bytes = total;
  book_.Tell(*job);
}

void JobManager::OnPrepared(const std::string& job_id, absl::StatusOr<PackedData> packed) {
  Job* job = book_.Find(job_id);
  if (job == nullptr || !runs_.contains(job->sequence) || !runs_.at(job->sequence).packing) return;
  Run* run = &runs_.at(job->sequence);
  run->packing = false;
  if (job->state != JobState::kPreparing) {
    book_.Happen(job, JobEvent::kStopped, "stopped while its data was made ready", host_->UnixMs());
    return EndRun(run);
  }
  if (draining_) {
    book_.Happen(job, JobEvent::kLose, "the server stops", host_->UnixMs());
    return EndRun(run);
  }
  absl::Status status = packed.status();
  if (status.ok() && job->files_ready == kDatasets) status = CheckBatch(job->spec, *packed);
  if (status.ok()) status = CheckTargets(job->spec, job->files_ready, *packed);
  if (!status.ok()) {
    // It was there when the job was submitted.
    if (absl::IsNotFound(status) || ReasonOf(status) == v1::DATASET_CHANGED) {
      Block(job, MakeError(absl::StatusCode::kFailedPrecondition, v1::DATASET_CHANGED, status.message()));
    } else if (IsFault(status)) {
      Fail(job, status);
    } else {
      Lose(run, status);
    }
    return EndRun(run);
  }
  ++job->files_ready;
  if (const absl::Status saved = book_.Save(job); !saved.ok()) LogWarn(saved.message());
  Prepare(run);
}

void JobManager::TryStart(Run* run) {
  Job* job = run->job;
  const absl::Time now = host_->Now();
  if (draining_ || run->packing || job->state != JobState::kPreparing || now < run->retry_at) return;
  if (const int idle = PoolOf(job->spec).NumIdle(); idle < job->spec.workers) {
    return Note(job, absl::StrCat("waits for workers: ", idle, " of ", job->spec.workers, " are free"));
  }
  // No worker may hear of a number that a server after this one would give out again.
  ++job->attempt;
  if (const absl::Status saved = book_.Save(job); !saved.ok()) {
    --job->attempt;
    run->retry_at = now + kJournalPause;
    return NoteJournal(job);
  }
  SendSeats(run);
}

void JobManager::SendSeats(Run* run) {
  Job* job = run->job;
  run->store_token = host_->DrawHex();
  host_->OpenStore(run->store_token);
  run->attempt = std::make_unique<Attempt>(++last_epoch_, PoolOf(job->spec).Take(job->spec.workers), options_.limits,
                                           host_->Now());
  TrainingSeat seat;
  seat.attempt = job->attempt;
  seat.job_id = job->id;
  seat.spec = job->spec;
  seat.data = DataOf(job->spec, 0);
  seat.evaluation = DataOf(job->spec, 1);
  seat.store_token = run->store_token;
  seat.form_deadline_ms = options_.form_deadline_ms;
  run->attempt->Start(std::move(seat));
  ++census_.attempts;
  LogInfo(job->id, " starts: attempt ", job->attempt, ", epoch ", run->attempt->epoch());
  Note(job, absl::StrCat("attempt ", job->attempt, ": its workers load the model"));
}

}  // namespace switchyard
