// Prepares a job's data before it takes workers: packs text files into tokens, one file for datasets (with weights one
// for each), then one for each set of evaluation.  The host packs on another thread; this class starts that and checks
// the result. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
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

  static bool HasText(const Job& job);
  // Whether the job has text that is not packed yet.
  static bool IsNeeded(const Job& job);

  // Starts the next pack.  Returns false if all data is ready.  REQUIRES: !packing().
  bool StartNext();
  bool packing() const { return packing_; }
  void Cancel() { context_.host->CancelPrepare(job_->id); }
  void OnProgress(int64_t done, int64_t total);
  // The host has finished the pack.  REQUIRES: packing().
  void End() { packing_ = false; }
  // Checks the last pack, together with the job's token files.  (Specs without text are checked when they are
  // submitted.)
  absl::Status Check(const PackedData& packed) const;

  // The files that ranks read: the spec's token files, then the packed text; datasets with weights in the spec's order.
  static std::vector<jobs::TrainFile> Training(const jobs::JobSpec& spec);
  static std::vector<jobs::TrainFile> Evaluation(const jobs::JobSpec& spec);
  // What text is packed into, in the order that Job::files_ready counts; "" where there is no text.  Evaluation is
  // last.
  static std::vector<std::string> Outputs(const jobs::JobSpec& spec);
  // How many of them are of datasets.
  static size_t NumDatasetOutputs(const jobs::JobSpec& spec);

 private:
  absl::Status CheckBatch(const PackedData& packed) const;
  // files: those of the list, or of a set of evaluation.
  absl::Status CheckTargets(const PackedData& packed, bool evaluation, const std::vector<std::string>& files) const;
  absl::Status CheckWindow(const PackedData& packed, int dataset) const;
  bool NeedsBatch(bool evaluation) const;

  RunContext& context_;
  Job* const job_;
  bool packing_ = false;
};

}  // namespace switchyard::server
