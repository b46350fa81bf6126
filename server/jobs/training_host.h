// Interface through which the job manager reaches the server around it: its clock, stores, packing threads, processes
// and engine.  No method blocks but CheckpointsOf, which reads a folder; all are called on the manager's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/fleet/worker_client.h"
#include "server/jobs/data_preparer.h"
#include "server/jobs/job.h"

namespace switchyard::server {

class TrainingHost {
 public:
  virtual ~TrainingHost() = default;
  virtual absl::Time Now() = 0;       // monotonic
  virtual int64_t UnixMs() = 0;       // for records
  virtual std::string DrawHex() = 0;  // 32 unpredictable digits
  // Open and close the rendezvous store of an attempt's ranks.
  virtual void OpenStore(const std::string& token) = 0;
  virtual void CloseStore(const std::string& token) = 0;
  // Packs on another thread; calls OnPrepareProgress at intervals, and OnPrepared once, also after CancelPrepare.
  virtual void Prepare(const std::string& job_id, PackRequest request) = 0;
  virtual void CancelPrepare(const std::string& job_id) = 0;
  // Kills a local worker.
  virtual void KillWorker(int local_index, int64_t pid) = 0;
  // Returns how a local worker's process ended ("signal 9 (Killed)"); empty if that is not known.
  virtual std::string EndOf(int local_index, int64_t pid) = 0;
  // Sets whether a job would train on serving workers now.  Returns the total time in which jobs could do so.
  virtual absl::Duration ShareServing(bool wanted) = 0;
  // Returns the steps of a job's finished checkpoints, in the order in which a resume would choose.  Reads a folder.
  virtual std::vector<int64_t> CheckpointsOf(const std::string& job_id) = 0;
  // Whether the worker's connection has unread bytes.
  virtual bool HasUnread(const fleet::WorkerInfo&) { return false; }
};

// Receives the reports of training jobs, to write loss logs.
// All calls come on the manager's thread, in order; they may write to a file but must not wait for anything else.  The
// sink logs its own errors, which fail no job.  `job` includes the report, and is valid for the call only.
class ProgressSink {
 public:
  virtual ~ProgressSink() = default;

  // An attempt goes on from `step` (0 = the beginning): rows that an earlier attempt wrote of later steps are void.
  virtual void OnStarted(const Job& job, int64_t step) = 0;
  virtual void OnStep(const Job& job, const jobs::TrainProgress& progress) = 0;
  virtual void OnEvaluated(const Job& job, const jobs::EvaluationResult& result) = 0;
  // The attempt is over; the job's state says how.  Another OnStarted may follow.
  virtual void OnEnded(const Job& job) = 0;
};

}  // namespace switchyard::server
