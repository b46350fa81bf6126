// One MoE layer: route, dispatch, experts, combine, residual, and the shared expert if there is one, in the order of
// the step's MoeSchedule.
//
// Weights are borrowed; the layers of a model share the scratch of a MoeExecutor.  Every rank of the group must call
// Run for every layer of a step, also with zero rows, with the same schedule and layout.  A token's bits depend neither
// on the ranks, nor the chunks, nor the other tokens.  Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/dispatch/token_dispatcher.h"
#include "workers/moe/experts/expert_weight_provider.h"
#include "workers/moe/layer/expert_adapters.h"
#include "workers/moe/layer/moe_context.h"
#include "workers/ops/activation/activation.h"
#include "workers/ops/gemm/weight_group.h"
#include "workers/ops/router/router.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

struct MoeLayerWeights {
  const ops::Weight* router = nullptr;  // [E, H]
  TensorView router_bias;               // [E] AccDType: as RouterDesc::bias; rank 0: none
  ops::WeightTable gate_up;  // [El] of the resident experts by slot: [2F, H], in the fused form of expert_ffn.h
  ops::WeightTable down;     // [El] [H, F]
  std::vector<TensorView> up_biases, down_biases;  // [El] each [F], [H], of GELU; empty: none, or in the weights
  ExpertAdapters gate_up_adapters, down_adapters;  // in training alone, of SwiGLU
  AdaptedFfn adapters() const { return {&gate_up_adapters, &down_adapters}; }
  bool adapted() const { return gate_up_adapters.any() || down_adapters.any(); }
  // Provides experts that are not all resident; then the two tables are empty, and on a device the host waits for the
  // layer's counts, so the step cannot be recorded.
  ExpertWeightProvider* experts = nullptr;
  const ops::Weight* shared_gate_up = nullptr;  // [2Fs, H]; null = no shared expert
  const ops::Weight* shared_down = nullptr;     // [H, Fs]
  const ops::Weight* shared_gate = nullptr;     // [1, H]: its logit goes through a sigmoid; null = weight 1
};

struct MoeLayerDesc {
  int64_t hidden = 0;      // H
  int64_t expert_ffn = 0;  // F
  int64_t shared_ffn = 0;  // Fs, 0 = no shared expert
  ops::Activation activation = ops::Activation::kSwiGlu;
  ops::GluClamp glu_clamp;  // of SwiGLU; without a shared expert
  DType dtype = DType::kBf16;
  ops::RouterDesc router;
};

struct MoeLayer {
  MoeLayerDesc desc;
  MoeLayerWeights weights;
};

// The largest steps of a group.
struct MoeCapacity {
  const Stream* stream = nullptr;
  const ExpertLayout* layout = nullptr;
  int rank = 0;
  int64_t rows = 0;  // of any rank, at most
  ExchangeMode exchange = ExchangeMode::kExact;
  bool offloaded = false;  // the layers' experts are not all resident (MoeLayerWeights::experts)
};

class MoeExecutor {
 public:
  // exchange: makes dispatchers; tests give others.
  using DispatcherMaker = std::unique_ptr<TokenDispatcher> (*)(Device device, ExchangeMode mode);
  explicit MoeExecutor(DispatcherMaker exchange = &MakeDispatcher);
  ~MoeExecutor();

  // Allocates scratch for such steps of this layer in one chunk, whichever experts rows choose; else it grows with the
  // steps.  Errors: ResourceExhausted.
  absl::Status Reserve(const MoeCapacity& room, const MoeLayerDesc& layer);
  // residual += experts(x) (+ shared).  T may be 0.  at: the model's fields of this layer.
  // Errors: InvalidArgument (shapes), or the communicator's (then the group is broken and residual undefined).
  absl::Status Run(const MoeContext& context, const LayerContext& at, const MoeLayer& layer,
                   const TensorView& x,          // [T, H] model dtype, the normalized rows
                   const TensorView& residual);  // [T, H] AccDType

  // The router's choices in the last Run, -1 if dropped; valid until the next.
  const TensorView& topk_idx() const;  // [T, K] int32

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::moe
