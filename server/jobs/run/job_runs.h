// The jobs under way; routes what training workers and the host report to them, by a worker's id, an attempt's epoch or
// a job's id.  Reports of another epoch than the job's are dropped.  All calls on one thread (job_loop.h).
//
// A worker of this machine that falls silent loses its process; one that also serves, and does not end its training
// when it should, keeps its place and gets no other job until it does.
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

  // REQUIRES: the job is PREPARING and not under way.
  void Begin(Job* job);
  // A user has paused or cancelled it.  Nothing where it is not under way.
  void StopAsAsked(const Job& job);
  // Workers that jobs under way still wait for: of those that serve, or of the others.
  int NumAwaited(bool on_serving_workers) const;
  void Tick();
  // Running jobs stop with a checkpoint and wait for the next server; no worker is taken in any more.
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
  // Each that is under way now, while any may end.
  void ForEach(const std::function<void(JobRun*)>& visit);
  void RemoveIfOver(const JobRun* run);
  // Asks the engine for time slices where a job wants them, and does not count the time that it could not use.
  // run: the one whose attempt is on serving workers; null: none is.
  void WatchSlices(JobRun* run, absl::Time now);
  // Ends a worker that is of no use any more, by its process where that is this machine's.
  void Fence(const TrainingWorker& trainer, const std::string& why);
  void GiveUp(JobRun* run, const std::vector<TrainingWorker>& workers);

  RunContext context_;
  std::map<int64_t, JobRun> runs_;  // by the job's sequence
  bool draining_ = false;
  // Of time slices, at the last tick.
  absl::Time watched_at_ = absl::InfinitePast(), last_slice_at_ = absl::InfinitePast();
  absl::Duration given_;
};

}  // namespace switchyard::server
