// Training's data of a matrix W [n, k] of the model, y = x · Wᵀ, beside the packed form that forward reads: its
// transpose, for dx = dy · W, and the gradient, to which dW = dyᵀ · x is added.
//
// Borrowed views; workers/train owns the memory and packs `transposed` anew when the weight has changed.
#pragma once

#include "workers/ops/gemm/weight.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct TrainedMatrix {
  const Weight* transposed = nullptr;  // [k, n] kPanels, the model's dtype
  TensorView gradient;                 // [n, k] AccDType, row-major; a gated weight's gate rows come first, then up's
};

// A low-rank adapter of a matrix W [n, k].
struct TrainedAdapter {
  TrainedMatrix a;  // of [r, k]
  TrainedMatrix b;  // of [n, r]
};

// A feed-forward: an expert, a shared expert or a dense MLP.
struct FfnGradients {
  TrainedMatrix gate_up;      // of [2F, H]; GELU: [F, H]
  TrainedMatrix down;         // of [H, F]
  TensorView up_bias = {};    // [F] AccDType; rank 0: none
  TensorView down_bias = {};  // [H]
  // Of an expert that has adapters.
  TrainedAdapter gate_up_adapter = {}, down_adapter = {};
};

}  // namespace switchyard::ops
