#include "workers/model/backward/backward_stages.h"

#include <utility>

namespace switchyard::model {
namespace {

std::vector<TensorView> WithoutMissing(std::vector<TensorView> all) {
  std::erase_if(all, [](const TensorView& view) { return view.rank() == 0; });
  return all;
}

void Append(const ops::FfnGradients& ffn, std::vector<TensorView>* all) {
  all->insert(all->end(), {ffn.down.gradient, ffn.down_bias, ffn.gate_up.gradient, ffn.up_bias});
  for (const ops::TrainedAdapter& adapter : {ffn.down_adapter, ffn.gate_up_adapter}) {
    all->insert(all->end(), {adapter.b.gradient, adapter.a.gradient});
  }
}

std::vector<TensorView> FeedForward(const LayerGradients& layer) {
  std::vector<TensorView> all;
  if (layer.dense.has_value()) Append(*layer.dense, &all);
  if (layer.moe.has_value()) {
    if (layer.moe->shared.has_value()) Append(*layer.moe->shared, &all);
    all.insert(all.end(), {layer.moe->shared_gate.gradient, layer.moe->router.gradient});
  }
  all.insert(all.end(), {layer.ffn_norm, layer.ffn_norm_bias});
  return all;
}

std::vector<TensorView> With(std::vector<TensorView> all, const std::vector<AdapterGradients>& adapters) {
  for (const AdapterGradients& adapter : adapters) {
    all.insert(all.end(), {adapter.b.gradient, adapter.a.gradient});
  }
  return all;
}

std::vector<TensorView> AllDense(const ModelGradients& gradients, const BackwardStage& stage) {
  const bool tied = gradients.lm_head.gradient.raw() == gradients.embedding.raw();
  switch (stage.part) {
    case BackwardPart::kHead:
      return {tied ? TensorView() : gradients.lm_head.gradient, gradients.final_norm, gradients.final_norm_bias};
    case BackwardPart::kFeedForward:
      return FeedForward(gradients.layers[stage.layer]);
    case BackwardPart::kAttentionOut:
      return With({gradients.layers[stage.layer].attention.o_bias, gradients.layers[stage.layer].attention.o.gradient},
                  gradients.layers[stage.layer].attention.o_adapters);
    case BackwardPart::kAttentionIn: {
      const AttentionGradients& attention = gradients.layers[stage.layer].attention;
      return With({attention.q_norm, attention.k_norm, attention.qkv_bias, attention.qkv.gradient, attention.norm,
                   attention.norm_bias},
                  attention.qkv_adapters);
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
  for (const ops::FfnGradients& expert : gradients.layers[stage.layer].moe->experts) Append(expert, &all);
  return WithoutMissing(std::move(all));
}

}  // namespace switchyard::model
