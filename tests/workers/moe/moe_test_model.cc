#include "tests/workers/moe/moe_test_model.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::test {
namespace {

double NextValue(uint32_t* state) {  // in [-1, 1)
  *state = *state * 1664525u + 1013904223u;
  return static_cast<double>(*state >> 8) / (1 << 23) - 1.0;
}

void SetElement(const TensorView& view, int64_t i, double value) {
  VisitDType(view.dtype(),
             [&]<class Elem>() { view.data<Elem>()[i] = static_cast<Elem>(static_cast<Acc<Elem>>(value)); });
}

Tensor RandomTensor(DType dtype, int64_t rows, int64_t width, double scale, uint32_t seed) {
  Tensor tensor(dtype, {rows, width});
  uint32_t state = seed * 2654435761u + 12345u;
  for (int64_t i = 0; i < rows * width; ++i) SetElement(tensor, i, scale * NextValue(&state));
  return tensor;
}

reference::MoeMatrices RandomMatrices(const MoeShape& shape, uint32_t state) {
  const auto random = [&state](int64_t n, int64_t k, double scale) {
    std::vector<double> values(static_cast<size_t>(n * k));
    for (double& value : values) value = scale * NextValue(&state);
    return values;
  };
  const double in = 1.5 / std::sqrt(static_cast<double>(shape.hidden));
  const double middle = 1.5 / std::sqrt(static_cast<double>(shape.ffn));
  reference::MoeMatrices matrices;
  matrices.router = random(shape.num_experts, shape.hidden, 3 * in);
  for (int e = 0; e < shape.num_experts; ++e) {
    matrices.gate_up.push_back(random(2 * shape.ffn, shape.hidden, in));
    matrices.down.push_back(random(shape.hidden, shape.ffn, middle));
  }
  if (shape.shared_ffn == 0) return matrices;
  matrices.shared_gate_up = random(2 * shape.shared_ffn, shape.hidden, in);
  matrices.shared_down = random(shape.hidden, shape.shared_ffn, in);
  if (shape.shared_gate) matrices.shared_gate = random(1, shape.hidden, in);
  return matrices;
}

}  // namespace

std::vector<double> ValuesOf(const TensorView& view) {
  std::vector<double> values;
  VisitDType(view.dtype(), [&]<class Elem>() {
    for (int64_t i = 0; i < view.NumElements(); ++i) {
      values.push_back(static_cast<double>(static_cast<Acc<Elem>>(view.data<Elem>()[i])));
    }
  });
  return values;
}

MoeTestModel::MoeTestModel(const MoeShape& shape, uint32_t seed) : shape_(shape) {
  SetMatrices(RandomMatrices(shape, seed));
}

MoeTestModel::MoeTestModel(const MoeShape& shape, const reference::MoeMatrices& matrices, const Stream& stream)
    : shape_(shape), matrices_(matrices) {
  PackAll(stream);
}

void MoeTestModel::PackAll(const Stream& stream) {
  constexpr auto kPanels = ops::WeightLayout::kPanels, kGated = ops::WeightLayout::kGatedPanels;
  weights_.gate_up.resize(matrices_.gate_up.size());
  weights_.down.resize(matrices_.down.size());
  Pack(stream, shape_.num_experts, kPanels, &matrices_.router, &weights_.router);
  for (size_t e = 0; e < weights_.down.size(); ++e) {
    Pack(stream, 2 * shape_.ffn, kGated, &matrices_.gate_up[e], &weights_.gate_up[e]);
    Pack(stream, shape_.hidden, kPanels, &matrices_.down[e], &weights_.down[e]);
  }
  Pack(stream, 2 * shape_.shared_ffn, kGated, &matrices_.shared_gate_up, &weights_.shared_gate_up);
  Pack(stream, shape_.hidden, kPanels, &matrices_.shared_down, &weights_.shared_down);
  Pack(stream, 1, kPanels, &matrices_.shared_gate, &weights_.shared_gate);
}

void MoeTestModel::Pack(const Stream& stream, int64_t n, ops::WeightLayout layout, std::vector<double>* values,
                        ops::Weight* weight) const {
  if (values->empty()) return;
  const int64_t k = static_cast<int64_t>(values->size()) / n;
  Tensor rows(shape_.dtype, {n, k});
  for (int64_t i = 0; i < n * k; ++i) SetElement(rows, i, (*values)[static_cast<size_t>(i)]);
  *values = ValuesOf(rows);
  auto packed = ops::PackWeight(stream, {.n = n, .k = k, .dtype = shape_.dtype, .layout = layout}, rows);
  SY_CHECK_OK(packed.status());
  *weight = *std::move(packed);
}

std::unique_ptr<MoeTestModel> MoeTestModel::On(const Stream& stream) const {
  return std::make_unique<MoeTestModel>(shape_, matrices_, stream);
}

void MoeTestModel::SetMatrices(const reference::MoeMatrices& matrices) {
  matrices_ = matrices;
  ThreadPool pool(1);
  PackAll(Stream::OnCpu(&pool));
}

void MoeTestModel::FavourExpert(int expert) {
  reference::MoeMatrices matrices = matrices_;
  // The last element of RandomRows' rows is 1, and a router's logit with this weight exceeds all others.
  for (int e = 0; e < shape_.num_experts; ++e) matrices.router[(e + 1) * shape_.hidden - 1] = e == expert ? 20.0 : 0.0;
  SetMatrices(matrices);
}

moe::MoeLayer MoeTestModel::LayerOf(const Stream& stream, const moe::ExpertLayout& layout, int rank) const {
  moe::MoeLayer layer;
  layer.desc = {.hidden = shape_.hidden,
                .expert_ffn = shape_.ffn,
                .shared_ffn = shape_.shared_ffn,
                .dtype = shape_.dtype,
                .router = {.top_k = shape_.top_k, .renormalize = shape_.renormalize}};
  layer.weights.router = &weights_.router;
  std::vector<const ops::Weight*> gate_up, down;
  for (const int32_t expert : layout.Residents(rank)) {
    gate_up.push_back(expert < 0 ? nullptr : &weights_.gate_up[expert]);
    down.push_back(expert < 0 ? nullptr : &weights_.down[expert]);
  }
  layer.weights.gate_up = *ops::WeightTable::Make(stream, std::move(gate_up));
  layer.weights.down = *ops::WeightTable::Make(stream, std::move(down));
  if (shape_.shared_ffn > 0) {
    layer.weights.shared_gate_up = &weights_.shared_gate_up;
    layer.weights.shared_down = &weights_.shared_down;
    if (shape_.shared_gate) layer.weights.shared_gate = &weights_.shared_gate;
  }
  return layer;
}

moe::MoeLayer MoeTestModel::LayerOf(const Stream& stream, moe::ExpertWeightProvider* experts) const {
  moe::MoeLayer layer = LayerOf(stream, moe::ExpertLayout::Contiguous(shape_.num_experts, 1), 0);
  layer.weights.gate_up = ops::WeightTable();
  layer.weights.down = ops::WeightTable();
  layer.weights.experts = experts;
  return layer;
}

moe::MoeLayer MoeTestModel::LayerOf(moe::ExpertWeightProvider* experts) const {
  ThreadPool pool(1, false);
  return LayerOf(Stream::OnCpu(&pool), experts);
}

std::vector<char> MoeTestModel::PackExperts() const {
  ThreadPool pool(1, false);
  return *PackExperts(Stream::OnCpu(&pool));
}

absl::StatusOr<std::vector<char>> MoeTestModel::PackExperts(const Stream& stream) const {
  const moe::PackedExpert form = packed();
  std::vector<char> bytes(static_cast<size_t>(form.bytes * shape_.num_experts));
  const auto fetch = [&](const ops::Weight& weight, char* to) -> absl::Status {
    const TensorView there(const_cast<void*>(weight.data()), DType::kU8, {weight.bytes()}, weight.device());
    ASSIGN_OR_RETURN(const Tensor here, CopyToHost(stream, there));
    std::memcpy(to, here.view().raw(), static_cast<size_t>(here.bytes()));
    return absl::OkStatus();
  };
  for (int e = 0; e < shape_.num_experts; ++e) {
    char* const at = bytes.data() + e * form.bytes;
    RETURN_IF_ERROR(fetch(weights_.gate_up[e], at));
    RETURN_IF_ERROR(fetch(weights_.down[e], at + form.down_offset));
  }
  return bytes;
}

Tensor MoeTestModel::RandomRows(int64_t rows, uint32_t seed) const {
  Tensor x = RandomTensor(shape_.dtype, rows, shape_.hidden, 1.0, seed);
  for (int64_t t = 0; t < rows; ++t) SetElement(x, (t + 1) * shape_.hidden - 1, 1.0);
  return x;
}

Tensor MoeTestModel::RandomResidual(int64_t rows, uint32_t seed) const {
  return RandomTensor(AccDType(shape_.dtype), rows, shape_.hidden, 1.0, seed);
}

std::vector<double> MoeTestModel::Naive(const TensorView& x, const TensorView& residual) const {
  const std::vector<double> rows = ValuesOf(x);
  const reference::MoeAnswer answer = reference::MoeBackward({.hidden = shape_.hidden,
                                                              .top_k = shape_.top_k,
                                                              .renormalize = shape_.renormalize,
                                                              .weights = matrices_,
                                                              .x = rows,
                                                              .dy = std::vector<double>(rows.size()),
                                                              .prob_gradient = {}});
  std::vector<double> out = ValuesOf(residual);
  for (size_t i = 0; i < out.size(); ++i) out[i] += answer.y[i];
  return out;
}

}  // namespace switchyard::test
