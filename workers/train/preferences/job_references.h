// Log probabilities that a job's reference, its base, gives the pairs of answers that the job trains on and evaluates
// with: read from the job's folder (reference_file.h), else computed before the first step.
//
//   Read ─► if any is missing: Compute, with a model that has the base's weights
//        ─► Fill, for each micro-batch
// Each value has the bits that it has wherever and whenever it is computed, on any number of ranks of one instruction
// set.  Memory: 16 bytes for each pair of the files; while a file is read or written 16 more for each of its pairs on
// rank 0, while values are computed a bit for each pair, and at any time a few MiB.  Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/jobs/training_assignment.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/train/data/data_source.h"
#include "workers/train/job/job_context.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/job/setup/job_data.h"
#include "workers/train/preferences/reference_file.h"
#include "workers/train/step/trainer.h"
#include "workers/train/step/trainer_state.h"

namespace switchyard::train {

class JobReferences {
 public:
  // All borrowed.  checkpoints: the job's folder.  base: the checksum of the base's weights.
  JobReferences(JobContext* context, checkpoint::FileSystem* checkpoints, JobData* data, std::string base)
      : context_(*context), checkpoints_(checkpoints), data_(*data), base_(std::move(base)) {}

  // Rank 0 reads the files, whose values all ranks get.  A file that is damaged, or of another base, data type or token
  // file, is passed over, with a warning.  start: where the attempt goes on; the pairs of the steps from there on are
  // wanted, and those of all evaluation.  A requested stop ends it early, OK.
  // Errors: Blocked for a file of a newer version; InvalidArgument for two token files with one hash and different
  // numbers of pairs.  Collective.
  absl::Status Read(const TrainerState& start);
  // Whether all that is wanted is there; the same on all ranks.
  bool complete() const { return missing_.empty() && stopped_ == jobs::StopKind::kNone; }
  // The stop that has ended Read or Compute early; the same on all ranks.
  jobs::StopKind stopped() const { return stopped_; }

  // Computes what is missing.  REQUIRES: the trainer's model has the base's weights.  Writes the files that have
  // changed, every TrainJobInput::reference_interval and at the end.  A requested stop ends it early, OK.
  // Errors: DataLoss for values that are not finite, with the token file and the pair; the trainer's.  Collective.
  absl::Status Compute(Trainer* trainer);

  // Sets what is known of the rows' pairs; of others NaN.
  void Fill(const DataSource& source, TrainRows* rows) const;

 private:
  // Of token files with the same contents.
  struct Entry {
    std::string file = {};  // the first of them
    int64_t num_tokens = 0, num_pairs = 0;
    ReferenceValues values = {};
    bool changed = false;  // since its file was written
  };
  // Windows of a source with a pair that is wanted and not there.
  struct Missing {
    DataSource* source = nullptr;
    std::string what = {};
    std::vector<int64_t> windows = {};
  };
  std::vector<std::pair<DataSource*, std::string>> Sources() const;
  Entry& EntryOf(const TokenFile& file) { return entries_.at(file.header().contents); }
  const PairLogProbs& Of(const DataSource& source, int64_t pair) const;
  void Set(const DataSource& source, int64_t pair, const PairLogProbs& value);
  absl::Status AddFile(const TokenFile& file, const std::string& what);
  // Of rank 0.  Returns "" if there is no file, kWasRead, or why it is of no use.
  absl::StatusOr<std::string> ReadFile(const std::string& name, Entry* entry);
  // Collective.
  absl::Status ReadAndSend(Entry* entry);
  absl::Status Send(std::vector<PairLogProbs>* pairs);
  // Whether to go on, at a window or sample of many: waits while the gate is shut; no, if a stop is requested.
  bool MayGoOn(absl::string_view what, int64_t done, int64_t total);
  std::vector<bool> WantedWindows(const DataSource& source, int64_t first, int64_t count);
  absl::Status FindMissing(DataSource* source, const std::string& what, const std::vector<bool>& wanted);
  // The ranks' words; sets stopped_.  An error is agreed.
  absl::StatusOr<std::vector<RankWord>> Exchange(const absl::Status& mine, bool writes = false);
  absl::Status ComputeWindows(Trainer* trainer, const Missing& missing);
  absl::Status ComputeRows(Trainer* trainer, const DataSource& source, const TrainRows& rows);
  // Gives the values that the ranks have computed to all, and writes the files of the source that have changed.
  absl::Status Share(const DataSource& source);
  absl::Status Write(const DataSource& source);

  JobContext& context_;
  checkpoint::FileSystem* const checkpoints_;
  JobData& data_;
  const std::string base_;
  std::map<uint64_t, Entry> entries_;  // by the token file's contents
  std::vector<Missing> missing_;       // of each source with some
  std::vector<bool> own_;              // [pairs of a source] computed by this rank and not shared yet
  jobs::StopKind stopped_ = jobs::StopKind::kNone;
  absl::Time written_ = absl::InfinitePast();
};

}  // namespace switchyard::train
