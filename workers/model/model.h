// A decoder-only MoE model on one rank: weights, RoPE table, scratch, and the forward pass.
//
// Thread-compatible: one caller at a time (the worker's step thread); work inside is parallel over the stream's pool.
// Every rank of the group must call Forward for the same layers in the same step, also with an empty batch, because MoE
// layers exchange rows.  Scratch is kept from call to call: a steady step allocates nothing.
// A row's results do not depend on the other rows, on chunking, threads or the number of ranks.
// Errors: the communicator's (Unavailable, DeadlineExceeded …) pass through and leave the step undone; Internal for a
// batch that does not fit the cache; Internal "layer L: NaN" under SY_CHECK_NAN.
// Does not do: sampling and slots (model_runner.h), backward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/batching/step.h"
#include "workers/model/attention_layer.h"
#include "workers/model/batch.h"
#include "workers/model/config.h"
#include "workers/model/kv_cache.h"
#include "workers/model/weights.h"
#include "workers/moe/moe_layer.h"
#include "workers/ops/rope.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

// What training will keep of a forward pass for its backward; nullptr means inference, the only case yet.
struct SavedForward;

// Receives logits of batch.logit_rows[first, first + logits.dim(0)): [n, V] fp32 (fp64 for an fp64 model), valid until
// it returns.  Called with rising `first`, a few rows at a time, so that the logits of a long prompt need no memory of
// their own.
using LogitsSink = absl::FunctionRef<absl::Status(int64_t first, const TensorView& logits)>;

struct StageIn {
  const Batch* batch = nullptr;      // borrowed
  TensorView hidden;                 // [T, H] residual of the stage before; empty: this stage embeds batch->tokens
  const LogitsSink* logits = nullptr;  // borrowed; needed if the batch wants logits and the stage ends the model
};

struct StageOut {
  TensorView hidden;                 // [T, H] AccDType residual after layer end-1; the model's scratch, until next call
  StepTimings timings;               // total_seconds is the caller's
  int64_t rows_sent = 0;             // expert rows, summed over layers
  int64_t rows_received = 0;
  int64_t expert_rows = 0;
};

struct LayerRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Sees intermediate tensors by name ("embed", "attention", "layer") while a forward pass runs: for tests and debugging.
using LayerTap = absl::FunctionRef<void(const char* name, int64_t layer, const TensorView& value)>;

class Model {
 public:
  // Takes the weights.  max_positions: of the RoPE table, usually the served context.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const ModelConfig& config, DType dtype, ModelWeights weights,
                                                       int64_t max_positions);

  // The MoE layers' place in a group: communicator, exchange, schedule.  Called again for every epoch, between steps.
  void SetMoe(MoeRuntime* moe);  // borrowed

  absl::StatusOr<StageOut> Forward(const Stream& stream, const StageIn& in, LayerRange layers, KvCache* cache,
                                   SavedForward* saved);

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  void set_tap(const LayerTap* tap) { tap_ = tap; }  // borrowed; nullptr = none
};

}  // namespace switchyard
