// Interface through which the job manager reaches the server around it: its clock, stores, packing threads, processes
// and engine.  No method blocks; all are called on the manager's thread.
#pragma once

#include <cstdint>
#include <string>

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
  virtual bool HasUnread(const fleet::WorkerInfo&) { return false; }
};

// Receives what training jobs report, to write loss logs.
// All calls come from the manager's thread, in order; they may write to a file but wait for nobody.  The sink logs its
// own errors: no job fails for its log.  `job` is as it is after the report, and valid for the call only.
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
