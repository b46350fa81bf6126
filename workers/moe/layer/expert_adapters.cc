#include "workers/moe/layer/expert_adapters.h"

#include <cstdint>

#include "scheduler/base/status_macros.h"
#include "workers/ops/activation/row_sums.h"
#include "workers/ops/activation/swiglu.h"
#include "workers/ops/gemm/backward/weight_gradient.h"
#include "workers/ops/gemm/grouped_gemm.h"

namespace switchyard::moe {
namespace {

DType DTypeOf(const ops::WeightGroup& group) {
  for (const ops::Weight* weight : group.weights()) {
    if (weight != nullptr) return weight->dtype();
  }
  return DType::kF32;  // of no expert, so of no row
}

int64_t WidthOf(const ops::WeightGroup& group) {
  for (const ops::Weight* weight : group.weights()) {
    if (weight != nullptr) return weight->n();
  }
  return 0;
}

}  // namespace

void TrainedExpertAdapters::Add(const ops::TrainedAdapter& adapter) {
  a_transposed.push_back(adapter.a.transposed);
  b_transposed.push_back(adapter.b.transposed);
  a_gradients.push_back(adapter.a.gradient);
  b_gradients.push_back(adapter.b.gradient);
}

absl::StatusOr<TensorView> ExpertAdapterProducts::Scaled(const Stream& stream, const ops::WeightGroup& w, double scale,
                                                         const AdaptedRows& rows, const TensorView& x,
                                                         RowScratch* scratch) {
  const int64_t count = rows.offsets.data()[rows.offsets.size() - 1];
  const TensorView y = scratch->Rows(count, WidthOf(w), DTypeOf(w));
  RETURN_IF_ERROR(ops::GroupedGemm(stream, {.x_rows = rows.x_rows}, x, w, rows.offsets, y));
  ops::ScaleRows(stream, scale, y);
  return y;
}

absl::Status ExpertAdapterProducts::AddProduct(const Stream& stream, const ops::WeightGroup& w, const IntView& offsets,
                                               const TensorView& x, const TensorView& y) {
  const TensorView products = products_.Rows(x.dim(0), WidthOf(w), AccDType(DTypeOf(w)));
  RETURN_IF_ERROR(ops::GroupedGemm(stream, {}, x, w, offsets, products));
  ops::AddRounded(stream, products, y);
  return absl::OkStatus();
}

absl::Status ExpertAdapterProducts::Add(const Stream& stream, const ExpertAdapters& adapters, const AdaptedRows& rows,
                                        const TensorView& x, const TensorView& y) {
  if (!adapters.any() || y.dim(0) == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TensorView u, Scaled(stream, adapters.a, adapters.scale, rows, x, &u_));
  return AddProduct(stream, adapters.b, rows.offsets, u, y);
}

absl::Status ExpertAdapterProducts::AddInputGradient(const Stream& stream, double scale,
                                                     const TrainedExpertAdapters& trained, const AdaptedRows& rows,
                                                     const TensorView& dy, const TensorView& dx) {
  if (trained.a_transposed.empty() || dx.dim(0) == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TensorView du, Scaled(stream, trained.b_transposed, scale, rows, dy, &du_));
  return AddProduct(stream, trained.a_transposed, rows.offsets, du, dx);
}

absl::Status ExpertAdapterProducts::AddGradients(const Stream& stream, const ExpertAdapters& adapters,
                                                 const TrainedExpertAdapters& trained, const AdaptedRows& rows,
                                                 const TensorView& dy, const TensorView& x) {
  if (!adapters.any() || dy.dim(0) == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TensorView u, Scaled(stream, adapters.a, adapters.scale, rows, x, &u_));
  ASSIGN_OR_RETURN(const TensorView du,
                   Scaled(stream, trained.b_transposed, adapters.scale, {.offsets = rows.offsets}, dy, &du_));
  RETURN_IF_ERROR(ops::GroupedWeightGradient(stream, {.offsets = rows.offsets}, dy, u, trained.b_gradients));
  return ops::GroupedWeightGradient(stream, {.offsets = rows.offsets, .x_rows = rows.x_rows}, du, x,
                                    trained.a_gradients);
}

absl::Status ExpertAdapterProducts::Hidden(const Stream& stream, const AdaptedFfn& adapters, ops::ExpertFfnDesc desc,
                                           const TensorView& x, const TensorView& hidden) {
  if (!adapters.gate_up->any()) return ops::ExpertHidden(stream, desc, x, hidden);
  if (desc.sums.raw() == nullptr) desc.sums = hidden_sums_.Rows(hidden.dim(0), 2 * hidden.dim(1), hidden.dtype());
  RETURN_IF_ERROR(ops::ExpertHidden(stream, desc, x, hidden));
  RETURN_IF_ERROR(Add(stream, *adapters.gate_up, {.offsets = desc.offsets, .x_rows = desc.x_rows}, x, desc.sums));
  return ops::SwiGlu(stream, desc.sums, hidden);
}

absl::Status ExpertAdapterProducts::Ffn(const Stream& stream, const AdaptedFfn& adapters,
                                        const ops::ExpertFfnDesc& desc, const TensorView& x, const TensorView& hidden,
                                        const TensorView& y) {
  RETURN_IF_ERROR(Hidden(stream, adapters, desc, x, hidden));
  RETURN_IF_ERROR(ops::GroupedGemm(stream, {.isa = desc.isa}, hidden, desc.down, desc.offsets, y));
  return Add(stream, *adapters.down, {.offsets = desc.offsets}, hidden, y);
}

}  // namespace switchyard::moe
