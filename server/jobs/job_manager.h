// Decides what becomes of training jobs: which waits, which gets workers, what follows when workers end or are lost.
//
// All calls on one thread (job_loop.h has it).  No sockets, no files of its own, no clock: those are the host's, the
// journal's and the workers'.  Everything that a job is is in the journal before it is acknowledged or acted upon; an
// attempt's number before any worker hears of it, so that no two trainers ever have the same one.
//
// The queue is first come, first served: a job that waits for workers holds them back from those behind it that want
// the same kind, which train alone or serve as well.  A job whose attempt was lost keeps its place; one that was paused
// goes to the end.  What is lost again and again without getting ahead has failed.  What only a user can mend (data
// that changed, a disk that stays full) is PAUSED with an error that says so, until somebody resumes it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/attempt.h"
#include "server/jobs/data_preparer.h"
#include "server/jobs/job_book.h"
#include "server/jobs/progress_sink.h"
#include "server/jobs/trainer_pool.h"
#include "server/jobs/training_census.h"

namespace switchyard {

// The house around the manager.  None of these blocks.
class TrainingHost {
 public:
  virtual ~TrainingHost() = default;
  virtual absl::Time Now() = 0;       // monotonic
  virtual int64_t UnixMs() = 0;       // for records
  virtual std::string DrawHex() = 0;  // 32 digits that nobody can guess
  // The rendezvous of an attempt's ranks.
  virtual void OpenStore(const std::string& token) = 0;
  virtual void CloseStore(const std::string& token) = 0;
  // On another thread; OnPrepareProgress now and then, and OnPrepared once, also after CancelPrepare.
  virtual void Prepare(const std::string& job_id, PackRequest request) = 0;
  virtual void CancelPrepare(const std::string& job_id) = 0;
  // A worker of this machine that has fallen silent, and how one ended ("signal 9 (Killed)"; empty: not known).
  virtual void KillWorker(int local_index, int64_t pid) = 0;
  virtual std::string EndOf(int local_index, int64_t pid) = 0;
  // Whether a job would train on serving workers now.  For how long serving has let jobs do so until now, in all.
  virtual absl::Duration ShareServing(bool wanted) = 0;
  // Whether something that a worker said has not been read yet.
  virtual bool HasUnread(const WorkerInfo&) { return false; }
};

class JobManager final : public TrainerEvents {
 public:
  struct Options {
    TrainerPool::Options trainers;
    int serving_workers = 0;  // that also train; 0: they do not
    Attempt::Limits limits;
    size_t max_open_jobs = 1000;
    size_t max_kept_jobs = 10000;
    int max_losses = 10;  // in a row without a new checkpoint or a step beyond the furthest
    absl::Duration first_pause = absl::Milliseconds(250);  // after the first loss; doubles with each
    absl::Duration longest_pause = absl::Minutes(1);
    absl::Duration full_disk = absl::Hours(1);        // how long a job tries again and again while the disk is full
    absl::Duration save_progress = absl::Seconds(1);  // at most so often
    int64_t form_deadline_ms = 60000;
  };
  // All borrowed.  `sink` may be null.
  JobManager(Options options, JobJournal* journal, TrainingHost* host, ProgressSink* sink);

  // Reads the journal; jobs that were under way when a server ended wait again, or are what they were to become.  Where
  // it cannot be written nothing starts until it can.
  absl::Status Start();

  // --- what users ask for ---
  struct Submitted {
    JobPtr job;
    bool existed = false;
  };
  // The job that this request has made before; null: none.  ALREADY_EXISTS: of another spec.
  absl::StatusOr<JobPtr> FindRequest(const std::string& request_id, const JobSpec& spec);
  // FAILED_PRECONDITION: there are not as many as it needs, nor will be.  `field` is for the message.
  absl::Status CheckWorkers(const JobSpec& spec, const std::string& field = "spec.workers") const;
  absl::StatusOr<Submitted> Submit(const std::string& request_id, const JobSpec& spec);
  absl::StatusOr<JobPtr> Get(const std::string& id);
  JobPage List(const JobFilter& filter) const { return book_.List(filter); }
  absl::StatusOr<JobPtr> Pause(const std::string& id);
  absl::StatusOr<JobPtr> Resume(const std::string& id) { return ResumeOn(id, std::nullopt); }
  // On so many workers from now on.  What the model allows is the caller's to check: this opens no file.
  absl::StatusOr<JobPtr> ResumeOn(const std::string& id, std::optional<int32_t> workers);
  // The spec that ResumeOn would give it with this other number, or why it would not.
  absl::StatusOr<JobSpec> CheckOtherWorkers(const Job& job, int32_t workers) const;
  absl::StatusOr<JobPtr> Cancel(const std::string& id);
  absl::StatusOr<int64_t> Watch(const std::string& id, JobBook::WatchFn watch);
  void Unwatch(int64_t watcher) { book_.Unwatch(watcher); }

  // --- what workers tell: what is of another epoch than the job's is dropped ---
  void OnTrainer(WorkerId id, std::shared_ptr<TrainerClient> client, WorkerInfo info) override;
  void OnTrainerHeartbeat(WorkerId id) override;
  void OnTrainingStarted(WorkerId id, int64_t epoch, int64_t step, std::vector<std::string> warnings) override;
  void OnTrainingStep(WorkerId id, int64_t epoch, TrainProgress progress) override;
  void OnTrainingEvaluated(WorkerId id, int64_t epoch, EvaluationResult result) override;
  void OnTrainingSaved(WorkerId id, int64_t epoch, SavedCheckpoint checkpoint) override;
  void OnTrainingNote(WorkerId id, int64_t epoch, std::string text) override;
  void OnTrainingEnded(WorkerId id, int64_t epoch, TrainEnd end) override;
  void OnTrainerLost(WorkerId id, std::string reason) override;

  // --- what the host tells ---
  void OnPrepareProgress(const std::string& job_id, int64_t done, int64_t total);
  void OnPrepared(const std::string& job_id, absl::StatusOr<PackedData> packed);
  // Every 100 ms or so.
  void Tick();
  // Running jobs stop with a checkpoint and wait for the next server; nothing starts any more.
  void Drain();
  // The last call: links and watches end.
  void End();
  bool idle() const { return runs_.empty(); }  // no job is prepared or trained
  const TrainingCensus& census();

 private:
  // A job that is PREPARING or beyond.
  struct Run {
    Job* job = nullptr;
    bool packing = false;
    std::unique_ptr<Attempt> attempt;
    std::string store_token;
    std::string warnings;                        // of its ranks' starts
    absl::Time retry_at = absl::InfinitePast();  // of a start that the journal refused
    absl::Time running_since = absl::InfiniteFuture();
    int64_t ran_before_ms = 0;
    absl::Time first_step_at = absl::InfinitePast();
    int64_t first_step = 0;
    absl::Time saved_at = absl::InfinitePast();
    bool unsaved_progress = false;
    bool over_runtime = false;
    int slot = 0;  // of the metrics: the lowest free one
  };

  absl::StatusOr<Job*> FindJob(const std::string& id);
  // As for a user who asks for what is so, or on its way.  `edit`: as JobBook::Move's.
  absl::StatusOr<JobPtr> Ask(const std::string& id, JobEvent event, const std::string& reason,
                             std::initializer_list<JobState> already, const std::function<void(Job*)>& edit = nullptr);

  // Whose workers a job takes.
  TrainerPool& PoolOf(const JobSpec& spec) { return spec.on_serving_workers ? serving_ : pool_; }
  const TrainerPool& PoolOf(const JobSpec& spec) const { return spec.on_serving_workers ? serving_ : pool_; }
  void Admit();
  void Prepare(Run* run);
  void TryStart(Run* run);
  void SendSeats(Run* run);
  // Ends a worker that is of no use any more, by its process where that is this machine's.
  void Fence(TrainingWorker trainer, const std::string& why);
  // job_slices.cc: of the run that is on serving workers, if there is one.
  void WatchSlices();
  void GiveUp(Run* run, const std::vector<TrainingWorker>& members);
  // After a pause or a cancel of a run.
  void Obey(Run* run);
  void BeginRunning(Run* run);
  // The rank 0 of the run of this epoch has spoken; null: not so.
  Run* Heard(WorkerId id, int64_t epoch);
  Run* OfEpoch(int64_t epoch);
  void ConcludeIfOver(Run* run);
  void Conclude(Run* run, TrainEnd end);
  void BeginAndFinish(Job* job);
  void CountStep(int64_t tokens_before, const TrainProgress& progress);
  void Lose(Run* run, const absl::Status& why);
  void Fail(Job* job, const absl::Status& why);
  // PAUSED by itself; `error`, which has a reason, stays until it is resumed.
  void Block(Job* job, const absl::Status& error);
  void EndRun(Run* run);
  void CheckRuntime(Run* run);
  void SaveProgress(Run* run);
  void Note(Job* job, const std::string& note);
  void NoteJournal(Job* job);  // that it waits for it, and why
  int FreeSlot() const;

  const Options options_;
  TrainingHost* const host_;
  ProgressSink* const sink_;
  JobBook book_;
  TrainerPool pool_;
  TrainerPool serving_;  // workers that also serve
  // Of slices, at the last tick.
  absl::Time watched_at_ = absl::InfinitePast();
  absl::Duration slices_given_;
  absl::Time last_slice_at_ = absl::InfinitePast();
  std::map<int64_t, Run> runs_;               // by the job's sequence
  std::map<int64_t, absl::Time> not_before_;  // of jobs that pause after a loss, by sequence
  int64_t last_epoch_ = 0;
  bool draining_ = false;
  TrainingCensus census_;
};

}  // namespace switchyard
