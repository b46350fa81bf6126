// A small MoE layer with random weights, the same on every rank, and the same layer computed naively in double
// precision.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/reference/moe_backward.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/tensor.h"

namespace switchyard::test {

struct MoeShape {
  int64_t hidden = 64;
  int64_t ffn = 48;
  int num_experts = 8;
  int top_k = 2;
  int64_t shared_ffn = 0;
  bool shared_gate = true;
  bool renormalize = true;
  DType dtype = DType::kF32;
};

// The elements of any tensor on the host, in order.
std::vector<double> ValuesOf(const TensorView& view);

class MoeTestModel {
 public:
  explicit MoeTestModel(const MoeShape& shape, uint32_t seed = 1);  // on the CPU
  // Rounds the matrices to the shape's dtype; the weights are on the stream's device.
  MoeTestModel(const MoeShape& shape, const reference::MoeMatrices& matrices, const Stream& stream);

  // The same model with its weights on the stream's device.
  std::unique_ptr<MoeTestModel> On(const Stream& stream) const;
  // The layer with the experts that rank `rank` of the layout holds.  stream: of the device that the weights are on.
  moe::MoeLayer LayerOf(const Stream& stream, const moe::ExpertLayout& layout, int rank) const;
  // The layer with experts' weights from `experts`.
  moe::MoeLayer LayerOf(const Stream& stream, moe::ExpertWeightProvider* experts) const;
  moe::MoeLayer LayerOf(moe::ExpertWeightProvider* experts) const;  // of a model on the CPU
  moe::PackedExpert packed() const { return {shape_.hidden, shape_.ffn, shape_.dtype, weights_.router.device().kind}; }
  // All experts in that form, one after the other, on the host.  stream: as LayerOf's.
  absl::StatusOr<std::vector<char>> PackExperts(const Stream& stream) const;
  std::vector<char> PackExperts() const;  // of a model on the CPU
  const MoeShape& shape() const { return shape_; }
  // [rows, H] in the model's dtype, and a residual stream to add to.
  Tensor RandomRows(int64_t rows, uint32_t seed) const;
  Tensor RandomResidual(int64_t rows, uint32_t seed) const;
  const reference::MoeMatrices& Matrices() const { return matrices_; }  // as rounded to the dtype
  // Rounds the values and uses them in place of the present ones.  REQUIRES: a model on the CPU.
  void SetMatrices(const reference::MoeMatrices& matrices);
  // Makes every row choose `expert` first, by far.  REQUIRES: a model on the CPU.
  void FavourExpert(int expert);

  // [T, H] The residual after the layer, in double precision, one token after the other.
  std::vector<double> Naive(const TensorView& x, const TensorView& residual) const;

 private:
  void PackAll(const Stream& stream);
  // Rounds the values of n rows to the dtype and packs them; nothing if there are none.
  void Pack(const Stream& stream, int64_t n, ops::WeightLayout layout, std::vector<double>* values,
            ops::Weight* weight) const;

  struct Weights {
    ops::Weight router;
    std::vector<ops::Weight> gate_up, down;  // [E]
    ops::Weight shared_gate_up, shared_down, shared_gate;
  };

  const MoeShape shape_;
  reference::MoeMatrices matrices_;
  Weights weights_;
};

}  // namespace switchyard::test
