// The end of a trainer's step: sums over ranks, the norm, AdamW, the routers' biases.
#include <cmath>
#include <optional>

#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/ops/optimizer/adamw.h"
#include "workers/train/step/trainer.h"

namespace switchyard::train {

absl::Status Trainer::FinishSums() {
  if (group_.world->world() == 1) return absl::OkStatus();
  const comm::Timed timed(&seconds_.all_reduce);
  return sync_->Finish();
}

// Replicated parameters count once, and so does every expert: each group of ranks has all of them, and the same bits.
absl::StatusOr<double> Trainer::GradientNorm(absl::Time deadline) {
  double replicated = 0, experts = 0;
  for (const ParameterBlock& block : parameters_->blocks()) {
    if (!block.by_gradient) continue;
    ASSIGN_OR_RETURN(const double sum, ops::SumOfSquares(stream_, block.gradient));
    (block.shard == model::Shard::kReplicated ? replicated : experts) += sum;
  }
  RETURN_IF_ERROR(SumOver(group_.experts, TensorView(&experts, DType::kF64, {1}), deadline));
  return std::sqrt(replicated + experts);
}

absl::Status Trainer::Update(double learning_rate, double gradient_scale) {
  ++steps_;
  const jobs::OptimizerSpec& adamw = options_.optimizer;
  ops::AdamWDesc desc = {.step = steps_ - skipped_steps_,
                         .lr = learning_rate,
                         .beta1 = adamw.beta1,
                         .beta2 = adamw.beta2,
                         .eps = adamw.epsilon,
                         .gradient_scale = gradient_scale};
  return parameters_->Update([&](ParameterBlock& block) -> absl::Status {
    if (!block.by_gradient) {
      BalanceRouter(block);
      return absl::OkStatus();
    }
    desc.weight_decay = block.decayed ? adamw.weight_decay : 0;
    return ops::AdamWStep(
        stream_, desc,
        {.parameter = block.master, .m = block.mean, .v = block.mean_squares, .gradient = block.gradient});
  });
}

void Trainer::BalanceRouter(const ParameterBlock& block) {
  if (options_.balance_bias_rate == 0) return;
  const size_t experts = static_cast<size_t>(model_->config().num_experts);
  for (size_t layer = 0; layer < model_->weights().layers.size(); ++layer) {
    const std::optional<model::MoeWeights>& moe = model_->weights().layers[layer].moe;
    if (!moe.has_value() || block.tensor != &moe->router_bias) continue;
    MoveRouterBias(options_.balance_bias_rate, absl::MakeConstSpan(chosen_).subspan(layer * experts, experts),
                   block.master);
  }
}

}  // namespace switchyard::train
