// The packed tokens that a job trains on and evaluates with, opened and checked.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/model/config/config.h"
#include "workers/train/data/data_source.h"
#include "workers/train/job/job_context.h"
#include "workers/train/step/trainer_state.h"

namespace switchyard::train {

// The windows of an evaluation set.
struct EvaluationData {
  std::string name;  // "": the spec has no names
  std::unique_ptr<DataSource> source = {};
};

struct JobData {
  std::vector<NamedTokens> names;  // of the training files
  std::unique_ptr<DataSource> training;
  std::vector<EvaluationData> evaluation;  // in the order of the spec's sets; empty: there is none
};

// Opens the files on every rank, which must have the same; rank 0 reads all of them once.  Collective: all ranks return
// the same.  Errors: marked Blocked if an earlier attempt has begun with the files.
absl::StatusOr<JobData> OpenJobData(JobContext* context, const model::ModelConfig& config);

// An error of data: Blocked if an earlier attempt could use them.
absl::Status OfData(const absl::Status& status, bool were_right);

}  // namespace switchyard::train
