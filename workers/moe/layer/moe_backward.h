// The backward of a MoE layer that MoeExecutor has run with LayerContext::saved: gradients of its input and weights.
//
// With o = Σ_k w_k · down(h_k) + sigmoid(g) · shared (moe_layer.h) and do the residual's gradient, rounded to the
// model's dtype as outputs are:
//   experts   dh = w · (do · down)   dw = (do · down) · h   ddown += doᵀ · (w · h)   then through the activation
//             (GELU with biases: dw += do · down_bias, and the biases' own)
//   router    dw goes through top-k and softmax to the logits, and what the router's own losses add (RouterLoss)
// Runs forward's schedule: gradients are dispatched as rows were and combined as outputs were (dispatch_gradient.h);
// weights' gradients are computed while the latter are on their way.
//
// Every rank of the group must call Run for the same layers in the same order, also with zero rows.  The bits of dx
// depend neither on ranks nor chunks; gradients of weights are sums over rows (an expert's over all rows that came to
// it) in an order that ranks and chunks decide, not threads.  Weights are borrowed; a model's layers share the scratch
// here. Thread-compatible.  On the CPU.  Does not do: sums over ranks (of the router, the shared expert, replicas).
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/moe/layer/moe_saved.h"
#include "workers/ops/gemm/backward/trained_matrix.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// The gradients of what a layer's router adds to the loss (load balancing, z-loss).
struct RouterLoss {
  absl::Span<const double> prob_gradient = {};  // [E] of every row's probabilities; empty = none
  double z_scale = 0;                           // of Σ over rows of logsumexp(logits)²
};

// Borrowed, and added to.
struct MoeBackwardWeights {
  ops::TrainedMatrix router;                    // of [E, H]
  absl::Span<const ops::FfnGradients> experts;  // [El] by slot; of empty slots unused
  const ops::FfnGradients* shared = nullptr;    // null = no shared expert
  ops::TrainedMatrix shared_gate;               // of [1, H]; without a gate unused
};

struct MoeBackwardRows {
  TensorView x;            // [T, H] model dtype, as the forward pass got it
  TensorView d_residual;   // [T, H] AccDType: the gradient of the residual stream behind the layer; not changed
  RouterLoss router_loss;  // of this layer
  TensorView d_x;          // [T, H] model dtype or AccDType: out
};

class MoeBackward {
 public:
  MoeBackward();
  ~MoeBackward();

  // at.saved: what the forward pass kept, with the same group, layout and schedule; not changed.
  // Errors: InvalidArgument (shapes, a weight without its transpose), FailedPrecondition (nothing is saved, or of
  // another schedule), the communicator's (then the group is broken and gradients undefined).
  absl::Status Run(const MoeContext& context, const LayerContext& at, const MoeLayer& layer,
                   const MoeBackwardWeights& weights, const MoeBackwardRows& rows);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::moe
