// Interface that receives what training jobs report, to write loss logs.
#pragma once

#include <cstdint>

#include "server/jobs/job.h"

namespace switchyard::server {

// All calls come from one thread, the manager's, and in the order of what they tell; they may write to a file but must
// not wait for anybody.  An error is the sink's own to log: no job fails for its log.  `job` is as it is after what is
// told, and valid for the call only.
class ProgressSink {
 public:
  virtual ~ProgressSink() = default;

  // An attempt goes on from `step` (0 = from the beginning): rows of later steps that an earlier attempt has written
  // are void, and will be written again.
  virtual void OnStarted(const Job& job, int64_t step) = 0;
  virtual void OnStep(const Job& job, const jobs::TrainProgress& progress) = 0;
  virtual void OnEvaluated(const Job& job, const jobs::EvaluationResult& result) = 0;
  // The attempt is over; the job's state says how.  Another OnStarted may follow.
  virtual void OnEnded(const Job& job) = 0;
};

}  // namespace switchyard::server
