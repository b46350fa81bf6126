#include "workers/model/backward/backward_stages.h"

#include <algorithm>
#include <utility>

namespace switchyard::model {
namespace {

std::vector<TensorView> WithoutMissing(std::vector<TensorView> all) {
  all.erase(std::remove_if(all.begin(), all.end(), [](const TensorView& view) { return view.rank() == 0; }), all.end());
  return all;
}

std::vector<TensorView> FeedForward(const LayerGradients& layer) {
  std::vector<TensorView> all;
  const auto append = [&](const ops::FfnGradients& ffn) {
    all.push_back(ffn.down.gradient);
    all.push_back(ffn.down_bias);
    all.push_back(ffn.gate_up.gradient);
    all.push_back(ffn.up_bias);
  };
  if (layer.dense.has_value()) append(*layer.dense);
  if (layer.moe.has_value()) {
    if (layer.moe->shared.has_value()) append(*layer.moe->shared);
    all.push_back(layer.moe->shared_gate.gradient);
    all.push_back(layer.moe->router.gradient);
  }
  all.push_back(layer.ffn_norm);
  all.push_back(layer.ffn_norm_bias);
  return all;
}

std::vector<TensorView> AllDense(const ModelGradients& gradients, const BackwardStage& stage) {
  const bool tied = gradients.lm_head.gradient.raw() == gradients.embedding.raw();
  switch (stage.part) {
    case BackwardPart::kHead:
      return {tied ? TensorView() : gradients.lm_head.gradient, gradients.final_norm, gradients.final_norm_bias};
    case BackwardPart::kFeedForward:
      return FeedForward(gradients.layers[stage.layer]);
    case BackwardPart::kAttentionOut: {
      const AttentionGradients& attention = gradients.layers[stage.layer].attention;
      return {attention.o_bias, attention.o.gradient};
    }
    case BackwardPart::kAttentionIn: {
      const AttentionGradients& attention = gradients.layers[stage.layer].attention;
      return {attention.q_norm,       attention.k_norm, attention.qkv_bias,
              attention.qkv.gradient, attention.norm,   attention.norm_bias};
    }
    case BackwardPart::kEmbedding:
      return {gradients.embedding, gradients.positions};
  }
  return {};
}

}  // namespace

std::vector<BackwardStage> BackwardStages(int64_t num_layers) {
  std::vector<BackwardStage> stages = {{.part = BackwardPart::kHead}};
  for (int64_t layer = num_layers - 1; layer >= 0; --layer) {
    for (const BackwardPart part :
         {BackwardPart::kFeedForward, BackwardPart::kAttentionOut, BackwardPart::kAttentionIn}) {
      stages.push_back({.part = part, .layer = layer});
    }
  }
  stages.push_back({.part = BackwardPart::kEmbedding});
  return stages;
}

std::vector<TensorView> DenseGradientsOf(const ModelGradients& gradients, const BackwardStage& stage) {
  return WithoutMissing(AllDense(gradients, stage));
}

std::vector<TensorView> ExpertGradientsOf(const ModelGradients& gradients, const BackwardStage& stage) {
  if (stage.part != BackwardPart::kFeedForward || !gradients.layers[stage.layer].moe.has_value()) return {};
  std::vector<TensorView> all;
  for (const ops::FfnGradients& expert : gradients.layers[stage.layer].moe->experts) {
    all.push_back(expert.down.gradient);
    all.push_back(expert.down_bias);
    all.push_back(expert.gate_up.gradient);
    all.push_back(expert.up_bias);
  }
  return WithoutMissing(std::move(all));
}

}  // namespace switchyard::model
