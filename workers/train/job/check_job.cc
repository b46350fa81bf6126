#include "workers/train/job/check_job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "workers/checkpoint/manifest/base_folder.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/model/config/memory_plan.h"
#include "workers/train/job/check_tensors.h"
#include "workers/train/job/setup/memory_fit.h"
#include "workers/train/parameters/parameter_rules.h"

namespace switchyard::train {

absl::StatusOr<model::ModelConfig> ParseTrainableConfig(absl::string_view config_text) {
  ASSIGN_OR_RETURN(model::ModelConfig config, model::ParseModelConfig(config_text, ""));
  if (config.num_experts == 0) {
    return absl::UnimplementedError("config.json: training of a model without experts is not supported");
  }
  if (config.quantization.has_value()) return model::NoQuantizedTraining(*config.quantization);
  if (config.attention_sinks || config.glu_clamp.limit > 0 || config.router_logit_bias) {
    return absl::UnimplementedError(absl::StrCat(
        "config.json: training of ", config.model_type,
        " is not supported: attention sinks, clamped SwiGLU and biases of routers' logits have no gradients here"));
  }
  RETURN_IF_ERROR(model::ParseTrainingConfig(config_text).status());
  return config;
}

absl::StatusOr<CheckedJob> CheckJob(const RootDir& checkpoints, const jobs::JobSpec& spec,
                                    const JobCheckOptions& options) {
  const bool weights = !spec.base_checkpoint.empty();
  const std::string& path = weights ? spec.base_checkpoint : spec.architecture;
  if (weights) RETURN_IF_ERROR(checkpoint::CheckFinished(path));
  ASSIGN_OR_RETURN(const ModelDir dir, ModelDir::Beneath(checkpoints, path));
  ASSIGN_OR_RETURN(std::string text, dir.ReadSmallFile("config.json", model::kMaxConfigBytes));
  ASSIGN_OR_RETURN(model::ModelConfig config, ParseTrainableConfig(text));
  ASSIGN_OR_RETURN(FrozenElements frozen, CountFrozen(spec, config));
  if (weights) {
    ASSIGN_OR_RETURN(const checkpoint::Checkpoint checkpoint, checkpoint::Checkpoint::Open(dir));
    RETURN_IF_ERROR(CheckTensors(checkpoint, config, options.read_limit));
  }
  if (options.ranks_here > 0) {
    const RankShare share = {
        .world = spec.workers, .ranks_here = options.ranks_here, .can_offload = options.can_offload, .frozen = frozen};
    RETURN_IF_ERROR(MustOffload(config, spec, share, jobs::FirstPacking(spec.communication),
                                options.memory_bytes / options.ranks_here)
                        .status());
  }
  return CheckedJob{.config = std::move(config), .frozen = std::move(frozen)};
}

std::string JobCheckLine(const absl::StatusOr<CheckedJob>& checked) {
  nlohmann::json line;
  if (checked.ok()) {
    const model::ModelConfig& config = checked->config;
    const absl::int128 parameters =
        model::WeightBytes(config, DType::kF32, config.num_experts) / DTypeBytes(DType::kF32);
    line = {{"architecture", config.architecture},
            {"context", config.context},
            {"vocab", config.vocab_size},
            {"experts", config.num_experts},
            {"router_bias", config.router_bias},
            {"parameters", static_cast<double>(parameters)},
            {"frozen", static_cast<double>(checked->frozen.OfBase())},
            {"adapters", static_cast<double>(checked->frozen.adapters)}};
  } else {
    line = {{"code", static_cast<int>(checked.status().code())}, {"error", std::string(checked.status().message())}};
  }
  return absl::StrCat(JsonText(line), "\n");
}

}  // namespace switchyard::train
