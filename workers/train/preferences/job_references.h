// What a job's reference, its base, says of the pairs of answers that the job trains on and evaluates with: read from
// the job's folder (reference_file.h), else computed before the first step.
//
//   Read ─► if any is missing: SetBase ─► Compute, with a model that has the base's weights
//        ─► Fill, for each micro-batch
// Each value has the bits that it has wherever and whenever it is computed, on any number of ranks of one instruction
// set.  Memory: 16 bytes for each pair of the files, while they are computed 24 more.  Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/train/data/data_source.h"
#include "workers/train/job/job_context.h"
#include "workers/train/job/setup/job_data.h"
#include "workers/train/preferences/reference_file.h"
#include "workers/train/step/trainer.h"
#include "workers/train/step/trainer_state.h"

namespace switchyard::train {

class JobReferences {
 public:
  // All borrowed.  checkpoints: the job's folder.
  JobReferences(JobContext* context, checkpoint::FileSystem* checkpoints, JobData* data)
      : context_(*context), checkpoints_(checkpoints), data_(*data) {}

  // Rank 0 reads the files, whose values all ranks get.  A file that cannot be used is passed over, with a warning.
  // start: where the attempt goes on; the pairs of the steps from there on are wanted, and those of all evaluation.
  // Collective.
  absl::Status Read(const TrainerState& start);
  // Whether all that is wanted is there; the same on all ranks.
  bool complete() const { return missing_.empty(); }

  // The checksum of the base's weights.  Blocked if values that are there are those of another base.
  absl::Status SetBase(const std::string& base);
  // Computes what is missing.  REQUIRES: the trainer's model has the base's weights.  Writes the files once a minute
  // and at the end.  A requested stop ends it early, OK and not complete; the attempt's next control point stops all
  // ranks. Errors: DataLoss for values that are not finite; the trainer's.  Collective.
  absl::Status Compute(Trainer* trainer);

  // Sets what is known of the rows' pairs; of others NaN.
  void Fill(const DataSource& source, TrainRows* rows) const;

 private:
  // Windows of a source with a pair that is wanted and not there.
  struct Missing {
    DataSource* source = nullptr;
    std::string what = {};
    std::vector<int64_t> windows = {};
  };
  std::vector<std::pair<DataSource*, std::string>> Sources() const;
  const PairLogProbs& Of(const DataSource& source, int64_t pair) const;
  absl::Status ReadFile(const TokenFile& file);
  absl::Status FindMissing(DataSource* source, const std::string& what, const std::vector<bool>& wanted);
  // Returns whether it was done; false: a stop was requested.
  absl::StatusOr<bool> ComputeWindows(Trainer* trainer, const Missing& missing);
  // Adds what the ranks have computed to the values of all, and writes the files of the source.
  absl::Status Share(const DataSource& source);

  JobContext& context_;
  checkpoint::FileSystem* const checkpoints_;
  JobData& data_;
  std::map<uint64_t, ReferenceValues> values_;  // by the token file's contents
  std::vector<Missing> missing_;                // of each source with some
  std::vector<double> own_;                     // [pairs of a source, 3] chosen, rejected, 1 where this rank has it
  std::string base_;
  absl::Time written_ = absl::InfinitePast();
};

}  // namespace switchyard::train
