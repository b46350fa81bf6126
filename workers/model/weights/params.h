// The table of a model's parameters: the names (with families/) and shapes of checkpoint tensors, where their rows go,
// and whether every rank has them or only those of the expert.  The loader executes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/weights.h"

namespace switchyard::model {

enum class Shard : uint8_t { kReplicated, kExpert };

// Rows [source_row, source_row + rows) of a checkpoint tensor, seen as a matrix of its last dimension, become rows
// [first_row, first_row + rows) of a weight or of a tensor.
struct Param {
  std::string name = {};            // in the checkpoint
  std::vector<int64_t> shape = {};  // that it must have there
  int64_t source_row = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  Shard shard = Shard::kReplicated;
  int32_t layer = -1, expert = -1;  // of Shard::kExpert: which of the model's
  // Of a quantized matrix; null: the tensor has its values as they are.  Owners: this table, and its copies.
  std::shared_ptr<const checkpoint::MatrixReader> matrix = nullptr;
  ops::Weight* weight = nullptr;  // exactly one of the two, borrowed
  Tensor* tensor = nullptr;       // [rows, columns] in all, or [n] as a column
  int64_t first_row = 0;
  // Of a family with MoeNaming::fused_transposed: the checkpoint has it transposed unless it is quantized (`shape` is
  // that of the matrix as the model sees it); and rows, or elements of the bias, that are gate's and up's by turns,
  // which the weight has one half behind the other.
  bool transposed = false, interleaved = false;
  bool bias = false;  // of `weight`, whose elements first_row counts
  // A router's bias of the choice: held in AccDType and written as such whatever the model's dtype; no gradient trains
  // it.
  bool router_bias = false;
};

// All params of this rank.  `weights` is from AllocateWeights with the same config and must stay where it is.  Experts
// are fused or not as the checkpoint has them, layer by layer. Errors (InvalidArgument): every tensor that is missing
// or has another shape or a dtype that cannot be loaded, or scales that do not fit (matrix_reader.h), with file,
// tensor, expected and found; at most kMaxReported of them and how many more.
absl::StatusOr<std::vector<Param>> BuildParams(const ModelConfig& config, const ModelFamily& family,
                                               const checkpoint::Checkpoint& checkpoint, ModelWeights* weights);

inline constexpr int kMaxReported = 8;

// The same without a checkpoint, for a model that is to be written: experts are not fused.
std::vector<Param> ListParams(const ModelConfig& config, const ModelFamily& family, ModelWeights* weights);

// The same of all experts, without places: names and shapes; a list for each weight or tensor of the model.
std::vector<std::vector<Param>> DescribeParams(const ModelConfig& config, const ModelFamily& family);

// The params of one layer alone.  checkpoint: null: as ListParams.  `layer` is the layers[layer_idx] of
// AllocateWeights, with these residents, or the one layer of a config that has it alone.  Errors: BuildParams'.
absl::StatusOr<std::vector<Param>> BuildLayerParams(const ModelConfig& config, const ModelFamily& family,
                                                    const checkpoint::Checkpoint* checkpoint, int64_t layer_idx,
                                                    const std::vector<int32_t>& residents, LayerWeights* layer);

// The params of routed experts alone: experts[i] are `ids` of the i-th layer with experts, by slot.
std::vector<Param> ListExpertParams(const ModelConfig& config, const ModelFamily& family, absl::Span<const int32_t> ids,
                                    absl::Span<std::vector<FfnWeights>> experts);

}  // namespace switchyard::model
