// The model that a job names, as its folder says it: its base checkpoint, or the architecture that it draws anew.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/base/io/model_dir.h"
#include "workers/model/config/config.h"
#include "workers/train/job/job_context.h"

namespace switchyard::train {

struct JobModel {
  std::unique_ptr<ModelDir> dir;
  std::string config_text;  // of config.json
  model::ModelConfig config;
  model::TrainingConfig training;
};

// Opens it and checks that its ranks can train it; sets the spec's balance_weight where it says none.  No weights are
// read.  Errors: those of the spec, the folder and config.json, each of which names the field.
absl::StatusOr<JobModel> OpenJobModel(JobContext* context);

}  // namespace switchyard::train
