// The stages of a model's backward pass: the order in which gradients become complete, the same on every rank, with or
// without rows.  Gradient reducers follow it.
#pragma once

#include <cstdint>
#include <vector>

#include "workers/model/backward/model_gradients.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

enum class BackwardPart : uint8_t {
  kHead,          // final norm and lm_head (LossHead)
  kFeedForward,   // experts, router, shared expert or dense feed-forward, and their norm
  kAttentionOut,  // the output projection
  kAttentionIn,   // q, k, v and their norms
  kEmbedding,
};

struct BackwardStage {
  BackwardPart part = BackwardPart::kHead;
  int64_t layer = 0;  // of the three in the middle
  bool operator==(const BackwardStage& other) const = default;
};

// The stages of a pass over all layers, in order.
std::vector<BackwardStage> BackwardStages(int64_t num_layers);

// The gradients that are complete when the stage is done: of what every rank has, and of this rank's experts.  Over all
// stages each comes once; one that lm_head and embedding share comes with the latter.  Frozen parameters have none.
std::vector<TensorView> DenseGradientsOf(const ModelGradients& gradients, const BackwardStage& stage);
std::vector<TensorView> ExpertGradientsOf(const ModelGradients& gradients, const BackwardStage& stage);

}  // namespace switchyard::model
