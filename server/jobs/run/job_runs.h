// The jobs under way.  Routes reports of training workers and of the host to them, by a worker's id, an attempt's epoch
// or a job's id; drops reports of other epochs.  All calls must come on one thread (job_loop.h).
//
// A local worker that falls silent is killed.  A worker that also serves and does not end its training in time keeps
// serving, and gets no other job until it has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/run/job_run.h"
#include "server/jobs/run/run_context.h"
#include "server/jobs/trainer_client.h"

namespace switchyard::server {

// UNAVAILABLE: "the server is stopping".
absl::Status ServerStopsError();

class JobRuns final : public TrainerEvents {
 public:
  explicit JobRuns(const RunContext& context) : context_(context) {}

  // early: the job prepares its data while it waits for its turn.  REQUIRES: the job is PREPARING and not under way.
  void Begin(Job* job, bool early);
  // Whether the job prepares its data before its turn.
  bool IsEarly(const Job& job) const;
  int NumEarly() const;
  // Stops a job that a user has paused or cancelled, if it is under way.
  void StopAsAsked(const Job& job);
  // Number of workers for which jobs whose turn it was still wait: workers that also serve, or training workers.
  int NumAwaited(bool on_serving_workers) const;
  void Tick();
  // Stops running jobs with a checkpoint, so that they wait for the next server; refuses further workers.
  void Drain();
  bool draining() const { return draining_; }
  bool empty() const { return runs_.empty(); }
  void FillSlots(TrainingCounts* counts) const;

  void OnPrepareProgress(const std::string& job_id, int64_t done, int64_t total);
  void OnPrepared(const std::string& job_id, const absl::StatusOr<PackedData>& packed);

  void OnTrainer(WorkerId id, std::shared_ptr<TrainerClient> client, fleet::WorkerInfo info) override;
  void OnTrainerHeartbeat(WorkerId id) override;
  void OnTraining(WorkerId id, int64_t epoch, TrainingReport report) override;
  void OnTrainerLost(WorkerId id, std::string reason) override;

 private:
  JobRun* OfEpoch(int64_t epoch);
  JobRun* OfJob(const std::string& job_id);
  // Visits each run; `visit` may remove runs.
  void ForEach(const std::function<void(JobRun*)>& visit);
  void RemoveIfOver(const JobRun* run);
  // Asks the engine for time slices if a job wants them, and does not count the time in which it had none. `run`: the
  // run on serving workers; null if there is none.
  void WatchSlices(JobRun* run, absl::Time now);
  // Ends the link of a worker that is of no use any more, and kills it if it is local.
  void Fence(const TrainingWorker& trainer, const std::string& why);
  void GiveUp(JobRun* run, const std::vector<TrainingWorker>& workers);

  RunContext context_;
  std::map<int64_t, JobRun> runs_;  // by the job's sequence
  bool draining_ = false;
  // Time slices, as of the last tick.
  absl::Time watched_at_ = absl::InfinitePast(), last_slice_at_ = absl::InfinitePast();
  absl::Duration given_;
};

}  // namespace switchyard::server
