// Which matrices of a layer are quantized, and where the checkpoint has them.
//
// All that products of attention and feed-forwards read, those of experts and shared experts included; not: routers,
// gates of shared experts, norms, biases, embeddings, lm_head.  Fused experts become a matrix for each expert and
// projection, by the family's names, as every reader of compressed-tensors wants them.  Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/params.h"
#include "workers/model/weights/weights.h"
#include "workers/quantize/group_codes.h"

namespace switchyard::quantize {

// Rows of a tensor of the checkpoint.
struct Linear {
  std::string name;    // as it is written: "model.layers.0.self_attn.q_proj.weight"
  std::string source;  // the checkpoint's tensor
  checkpoint::TensorLocation at;
  DType dtype = DType::kBf16;
  int64_t source_row = 0, rows = 0, columns = 0;
  int32_t expert = -1;  // -1: of no routed expert
  // Of the layer's weights: its rows begin at first_row.
  ops::Weight* weight = nullptr;
  int64_t first_row = 0;

  // Reads rows [first, first + count) to `to`, [count, columns].  Blocks on the disk.  Errors: the file's;
  // InvalidArgument, with file, tensor and place, for a value that is NaN or Inf.
  absl::Status Read(int64_t first, int64_t count, float* to) const;
};

struct LayerPlan {
  std::vector<Linear> linears;
  // Modules of the layer that stay as they are, by the names that are written, and how tensors are called there whose
  // names change.
  std::vector<std::string> plain_modules;
  absl::btree_map<std::string, std::string> renamed;
};

// The config with this layer alone, for its weights: of a vocabulary of one token, whose tables are not used.
model::ModelConfig OneLayer(const model::ModelConfig& config, int64_t layer_idx);
std::vector<int32_t> AllExperts(const model::ModelConfig& config);

// layer: of AllocateWeights of OneLayer's config with AllExperts.
// Errors: BuildLayerParams'; InvalidArgument "tensor "…": groups of 32 columns do not divide its 48 columns".
absl::StatusOr<LayerPlan> PlanLayer(const model::ModelConfig& config, const checkpoint::Checkpoint& checkpoint,
                                    const GroupFormat& format, int64_t layer_idx, model::LayerWeights* layer);

// Why a model cannot be quantized (Unimplemented, InvalidArgument), before its tensors are looked at.
absl::Status CheckQuantizable(const model::ModelConfig& config);

}  // namespace switchyard::quantize
