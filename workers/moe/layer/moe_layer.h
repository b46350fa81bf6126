// One MoE layer: router → MoeSchedule (dispatch, experts, combine) → residual, plus the shared expert where there is
// one.
//
// Weights are borrowed; scratch lives in the MoeExecutor that the layers of a model share (a step runs them one after
// the other).  Every rank of the group must call Run for every layer of a step, also with zero rows, with the same
// schedule and layout.  A token's bits depend neither on the ranks, nor the chunks, nor the other tokens.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/dispatch/exchange.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/experts/layer_experts.h"
#include "workers/moe/layer/all_to_all_watch.h"
#include "workers/moe/layer/expert_capacity.h"
#include "workers/moe/layer/moe_saved.h"
#include "workers/moe/layer/moe_stats.h"
#include "workers/moe/placement/layer_placer.h"
#include "workers/moe/popularity/layer_forecaster.h"
#include "workers/ops/activation/activation.h"
#include "workers/ops/gemm/weight_group.h"
#include "workers/ops/router/router.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

struct MoeLayerWeights {
  const Weight* router = nullptr;  // [E, H]
  TensorView router_bias;          // [E] AccDType: as RouterDesc::bias; rank 0: none
  WeightTable gate_up;             // [El] of the resident experts by slot: [2F, H], in the fused form of expert_ffn.h
  WeightTable down;                // [El] [H, F]
  std::vector<TensorView> up_biases, down_biases;  // [El] each [F], [H]; empty: none (only with GELU)
  // Has the experts where they are not all resident; then the two tables are empty, and on a device the host waits for
  // the layer's counts: not for what is recorded.
  LayerExperts* experts = nullptr;
  const Weight* shared_gate_up = nullptr;  // [2Fs, H]; null = no shared expert
  const Weight* shared_down = nullptr;     // [H, Fs]
  const Weight* shared_gate = nullptr;     // [1, H]: its logit goes through a sigmoid; null = weight 1
};

struct MoeLayerDesc {
  int64_t hidden = 0;      // H
  int64_t expert_ffn = 0;  // F
  int64_t shared_ffn = 0;  // Fs, 0 = no shared expert
  Activation activation = Activation::kSwiGlu;
  DType dtype = DType::kBf16;
  RouterDesc router;
};

struct MoeLayer {
  MoeLayerDesc desc;
  MoeLayerWeights weights;
};

// What the layers of one step have in common.
struct MoeStep {
  const Stream* stream = nullptr;
  Communicator* comm = nullptr;          // the "ep" group
  const ExpertLayout* layout = nullptr;  // layout->num_ranks() == comm->world()
  const MoeSchedule* schedule = nullptr;
  absl::Time deadline = absl::InfiniteFuture();
  MoeStats* stats = nullptr;      // added to, but for expert_counts
  TensorView expert_counts = {};  // [E] int32 on the stream's device, added to: this rank's rows; rank 0 = not wanted
  // The same of the first num_decode_rows rows alone; rank 0 = not wanted.
  TensorView decode_counts = {};
  int64_t num_decode_rows = 0;
  const int32_t* num_rows = nullptr;  // on a device: rows from *num_rows on are padding; null = none are
  ExchangeMode exchange = ExchangeMode::kExact;
  int64_t max_rows = 0;  // of kBounded: no rank has more rows in this step, padding included; the same on all ranks
  // Decides where rows go, layer by layer; null: the layout does.  On a device the host waits for the gate: not for
  // what is recorded.
  LayerPlacer* placer = nullptr;
  // Is told of each gate, and tells the placer and the experts what it expects; null: nobody does.  Not asked where a
  // schedule gates its rows in parts.
  LayerForecaster* forecaster = nullptr;
  int moe_layer = 0;               // which of the model's MoE layers this is: the index of the three above
  AllToAllWatch* watch = nullptr;  // is told of this layer's all-to-alls; null: nobody is
  // What finds no room at its expert is dropped, before it is placed.  On the CPU, where all rows are gated at once.
  ExpertCapacity capacity = {};
  // Keeps what this layer's backward needs; null: nobody wants one.  On the CPU with kExact, without placer, forecaster
  // and MoeLayerWeights::experts; else Unimplemented.
  MoeSaved* saved = nullptr;
};

// The largest steps of a group of two ranks or more.
struct MoeRoom {
  const Stream* stream = nullptr;
  const ExpertLayout* layout = nullptr;
  int rank = 0;
  int64_t rows = 0;  // of any rank, at most
  ExchangeMode exchange = ExchangeMode::kExact;
  bool brought = false;  // the layers' experts are not all resident (MoeLayerWeights::experts)
};

class MoeExecutor {
 public:
  // exchange: what moves rows; another than MakeExchange for tests.
  using ExchangeMaker = std::unique_ptr<RowExchange> (*)(Device device, ExchangeMode mode);
  explicit MoeExecutor(ExchangeMaker exchange = &MakeExchange);
  ~MoeExecutor();

  // Takes scratch for such steps of this layer in one chunk at once, whichever experts rows choose; else it grows with
  // the steps.  Errors: ResourceExhausted.
  absl::Status Reserve(const MoeRoom& room, const MoeLayerDesc& layer);
  // residual += experts(x) (+ shared).  T may be 0.
  // Errors: InvalidArgument (shapes), or the communicator's (then the group is broken and residual undefined).
  absl::Status Run(const MoeStep& step, const MoeLayer& layer,
                   const TensorView& x,          // [T, H] model dtype, the normalized rows
                   const TensorView& residual);  // [T, H] AccDType

  // Of the last Run, valid until the next: the experts that the router chose, -1 where a choice was dropped.
  const TensorView& topk_idx() const;  // [T, K] int32

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
