// The backward of a MoE layer that MoeExecutor has run with LayerContext::saved: gradients of its input and of its
// weights.
//
// With o = Σ_k w_k · down(h_k) + sigmoid(g) · shared (moe_layer.h) and do the residual's gradient, rounded to the
// model's dtype as outputs are:
//   experts   dh = w · (do · down)   dw = (do · down) · h   ddown += doᵀ · (w · h)   then through the activation
//             (GELU with biases: dw += do · down_bias, and the biases' own)
//   router    dw goes through top-k and softmax to the logits, and what the router's own losses add (RouterLoss)
// It runs the schedule that forward ran: gradients are dispatched as rows were and combined as outputs were
// (dispatch_gradient.h), weights' gradients are made while the latter are on their way.
//
// Every rank of the group must call Run for the same layers in the same order, also with zero rows.  dx depends neither
// on the ranks nor the chunks (bit for bit); gradients of weights are sums over rows, of an expert over all rows that
// came to it, in an order that the ranks and chunks decide: the same bits for the same ones, on any number of threads.
// What several ranks have of a gradient (the router's, the shared expert's, replicas') is not added up here.
// Weights are borrowed; scratch lives here and is shared by a model's layers.  Thread-compatible.  On the CPU.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/moe/layer/moe_saved.h"
#include "workers/ops/gemm/backward/trained_matrix.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// What a layer's router adds to the loss by itself (load balancing, z-loss), as its gradients.
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

  // at.saved: what the forward pass kept, with the same group, layout and schedule; it stays as it is.
  // Errors: InvalidArgument (shapes, a weight without its transpose), FailedPrecondition (nothing is saved, or of
  // another schedule), the communicator's (then the group is broken and gradients undefined).
  absl::Status Run(const MoeContext& context, const LayerContext& at, const MoeLayer& layer,
                   const MoeBackwardWeights& weights, const MoeBackwardRows& rows);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::moe
