// A part of a model that runs alone on windows of tokens: one layer, or what is around the layers (embedding, last norm
// and lm_head), so that a model larger than memory can be run layer by layer.
//
// Rows are hidden states in AccDType, one for each token of windows (samples.h); a sequence attends to itself alone.
// Thread-compatible; works on the stream's threads.  Errors: the loader's and the model's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/comm/core/communicator.h"
#include "workers/model/config/config.h"
#include "workers/model/forward/batch.h"
#include "workers/model/forward/model.h"
#include "workers/model/forward/saved_forward.h"
#include "workers/model/runner/kv_cache.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/layer/moe_stats.h"
#include "workers/quantize/samples.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::quantize {

struct PartOptions {
  DType dtype = DType::kBf16;  // to compute in
  int64_t length = 512;        // of a window
  int64_t windows = 4;         // in a batch, at most
};

class ModelPart {
 public:
  // The embedding and the head of a model.  The checkpoint is read here alone.
  static absl::StatusOr<std::unique_ptr<ModelPart>> LoadEnds(const Stream& stream,
                                                             const checkpoint::Checkpoint& checkpoint,
                                                             const model::ModelConfig& config,
                                                             const PartOptions& options);
  // Layer layer_idx, with all of its experts, into weights that AllocateWeights made for OneLayer's config.
  static absl::StatusOr<std::unique_ptr<ModelPart>> LoadLayer(const Stream& stream,
                                                              const checkpoint::Checkpoint& checkpoint,
                                                              const model::ModelConfig& config, int64_t layer_idx,
                                                              model::ModelWeights weights, const PartOptions& options);

  // Of embedding and head: fills in the rows [T, H] of windows.
  absl::Status Embed(const Windows& windows, const TensorView& rows);
  // Of embedding and head: the sum of -log2 of the probabilities of the windows' targets.
  absl::StatusOr<double> Bits(const Windows& windows, const TensorView& rows);
  // Of a layer: runs it over the rows of the batch of windows that begins with row `first`, which are replaced by its
  // outputs unless `saved` is given: then what they need on their way is kept in it.
  absl::Status Run(const Windows& windows, int64_t first, const TensorView& rows, model::SavedForward* saved);

  const model::ModelConfig& config() const { return config_; }
  model::LayerWeights* layer() { return &model_->mutable_weights()->layers.front(); }
  // Rows of a batch that begins with row `first`; the last may have fewer than others.
  int64_t BatchRows(const Windows& windows, int64_t first) const {
    return std::min(max_rows(), windows.num_rows() - first);
  }
  int64_t max_rows() const { return options_.windows * options_.length; }

 private:
  ModelPart(const Stream& stream, const model::ModelConfig& config, const PartOptions& options);
  absl::Status Finish(model::ModelWeights weights);
  void FillBatch(const Windows& windows, int64_t first, int64_t count);
  absl::StatusOr<model::StageOut> Forward(const model::StageIn& in, bool trains, model::SavedForward* saved);

  const Stream stream_;
  const model::ModelConfig config_;
  const PartOptions options_;
  std::unique_ptr<comm::Communicator> comm_;
  moe::ExpertLayout layout_;
  pipeline::MoeSchedule infers_, trains_;
  moe::MoeStats stats_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::KvCache> cache_;  // null: of embedding and head
  model::Batch batch_;
  std::vector<int32_t> blocks_;  // of the cache, in order
};

}  // namespace switchyard::quantize
