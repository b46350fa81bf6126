// Makes a job's data ready before it takes workers: text files become tokens, one file for datasets, then one for
// evaluation.  The host packs on another thread; this starts it and checks the result.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/jobs/data_preparer.h"
#include "server/jobs/job.h"
#include "server/jobs/run/run_context.h"
#include "server/jobs/trainer_client.h"

namespace switchyard::server {

class JobPreparation {
 public:
  JobPreparation(RunContext* context, Job* job) : context_(*context), job_(job) {}

  // Starts what comes next.  False: all is ready.  REQUIRES: !packing().
  bool StartNext();
  bool packing() const { return packing_; }
  void Cancel() { context_.host->CancelPrepare(job_->id); }
  void OnProgress(int64_t done, int64_t total);
  // The host is through with it.  REQUIRES: packing().
  void End() { packing_ = false; }
  // Checks what was packed last together with the tokens beside it; specs without text are checked at their submission.
  absl::Status Check(const PackedData& packed) const;

  // Files that ranks read: tokens as they are, then what was made of text.
  static std::vector<jobs::TrainFile> Training(const jobs::JobSpec& spec);
  static std::vector<jobs::TrainFile> Evaluation(const jobs::JobSpec& spec);

 private:
  absl::Status CheckBatch(const PackedData& packed) const;
  absl::Status CheckTargets(const PackedData& packed) const;

  RunContext& context_;
  Job* const job_;
  bool packing_ = false;
};

}  // namespace switchyard::server
