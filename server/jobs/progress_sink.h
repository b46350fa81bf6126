// Interface that receives what training jobs report, to write loss logs.
#pragma once

#include <cstdint>

#include "server/jobs/job.h"

namespace switchyard::server {

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
