// The gradients of a model's parameters, and the transposed weights that backward reads, in the shape of ModelWeights
// (weights.h).  Views, owned by workers/train/parameters/parameters.h.  Gradients are [n, k] or [n] AccDType and are
// added to; of a frozen parameter the gradient is TensorView(), and none is computed.
#pragma once

#include <optional>
#include <vector>

#include "workers/ops/gemm/backward/trained_matrix.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

struct AdapterGradients {
  ops::TrainedMatrix a;  // of [r, k]
  ops::TrainedMatrix b;  // of [n, r]
};

struct AttentionGradients {
  TensorView norm;                                                   // [H]
  TensorView norm_bias;                                              // [H]; rank 0: none, and so below
  ops::TrainedMatrix qkv;                                            // of [N*D + 2*Nkv*D, H]
  TensorView qkv_bias;                                               // [N*D + 2*Nkv*D]
  TensorView q_norm, k_norm;                                         // [D], or [N*D] and [Nkv*D]
  ops::TrainedMatrix o;                                              // of [H, N*D]
  TensorView o_bias;                                                 // [H]
  std::vector<AdapterGradients> qkv_adapters = {}, o_adapters = {};  // in the order of AttentionWeights
};

struct MoeGradients {
  ops::TrainedMatrix router;               // of [E, H]
  std::vector<ops::FfnGradients> experts;  // [El] by slot
  std::optional<ops::FfnGradients> shared;
  ops::TrainedMatrix shared_gate;  // of [1, H]
};

struct LayerGradients {
  AttentionGradients attention;
  TensorView ffn_norm;                     // [H]
  TensorView ffn_norm_bias;                // [H]
  std::optional<ops::FfnGradients> dense;  // exactly one of the two
  std::optional<MoeGradients> moe;
};

struct ModelGradients {
  TensorView embedding;  // [V, H]; lm_head's where they are tied
  std::vector<LayerGradients> layers;
  TensorView positions;        // [context, H]
  TensorView final_norm;       // [H]
  TensorView final_norm_bias;  // [H]
  ops::TrainedMatrix lm_head;  // of [V, H]
};

}  // namespace switchyard::model
