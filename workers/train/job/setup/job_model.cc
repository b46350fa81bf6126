#include "workers/train/job/setup/job_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/manifest/base_folder.h"
#include "workers/train/job/check_trainable.h"
#include "workers/train/job/job_folder.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

// Of what the model and the ranks allow.
absl::Status CheckSpec(const jobs::JobSpec& spec, const model::ModelConfig& config, const std::string& path,
                       int world) {
  if (spec.sequence_length > config.context) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence_length: ", spec.sequence_length, ", the context of ", path, " is ", config.context));
  }
  if (config.num_experts % world != 0) {
    return absl::InvalidArgumentError(absl::StrCat("workers: the ", config.num_experts, " experts of ", path,
                                                   " cannot be dealt out to ", world, " in equal parts"));
  }
  if (spec.batch_sequences % world != 0) {
    return absl::InvalidArgumentError(absl::StrCat("batch_sequences: ", spec.batch_sequences,
                                                   " cannot be dealt out to ", world, " workers in equal parts"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobModel> OpenJobModel(JobContext* context) {
  const jobs::JobSpec& spec = context->spec();
  RETURN_IF_ERROR(Validate(spec));
  const bool anew = spec.base_checkpoint.empty();
  const std::string& path = anew ? spec.architecture : spec.base_checkpoint;
  const std::string where = absl::StrCat(anew ? "architecture " : "base_checkpoint ", path);
  if (!anew) RETURN_IF_ERROR(In("base_checkpoint", checkpoint::CheckFinished(path)));
  ASSIGN_OR_RETURN(const RootDir root, RootDir::Open(context->input().checkpoint_root, kCheckpointRoot));
  JobModel model;
  absl::StatusOr<ModelDir> dir = ModelDir::Beneath(root, path);
  if (!dir.ok()) return In(anew ? "architecture" : "base_checkpoint", dir.status());
  model.dir = std::make_unique<ModelDir>(*std::move(dir));
  absl::StatusOr<std::string> text = model.dir->ReadSmallFile("config.json", model::kMaxConfigBytes);
  if (!text.ok()) return In(where, text.status());
  model.config_text = *std::move(text);
  absl::StatusOr<model::ModelConfig> config = ParseTrainableConfig(model.config_text);
  if (!config.ok()) return In(where, config.status());
  model.config = *std::move(config);
  const absl::StatusOr<model::TrainingConfig> training = model::ParseTrainingConfig(model.config_text);
  if (!training.ok()) return In(where, training.status());
  model.training = *training;
  // From here on it is the job's, and in its checkpoints (ShapeOf).
  if (!spec.balance_weight.has_value()) {
    const double weight = model.training.router_aux_loss_coef.value_or(jobs::kDefaultBalanceWeight);
    context->set_balance_weight(weight);
    if (context->leads()) {
      LogInfo("job ", context->input().job_id, ": balance_weight is ", weight, ", as the spec says none");
    }
  }
  RETURN_IF_ERROR(CheckSpec(spec, model.config, path, context->comm()->world()));
  return model;
}

}  // namespace switchyard::train
