#include "workers/model/forward/adapter_products.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/string_view.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/activation/row_sums.h"
#include "workers/ops/gemm/backward/weight_gradient.h"
#include "workers/ops/gemm/gemm.h"

namespace switchyard::model {
namespace {

// The dropout of one adapter's input: a site of its own.
ops::NoiseDesc OfAdapter(ops::NoiseDesc dropout, const AdapterWeights& adapter) {
  constexpr absl::string_view kProjections[] = {"q_proj", "k_proj", "v_proj", "o_proj"};  // FROZEN, as sites are
  const auto* const found = std::find(std::begin(kProjections), std::end(kProjections), adapter.projection);
  dropout.site = static_cast<ops::NoiseSite>(static_cast<int>(ops::NoiseSite::kAdapter) + (found - kProjections));
  return dropout;
}

TensorView OutputOf(const AdapterWeights& adapter, const TensorView& y) {
  return y.Columns(adapter.first_column, adapter.b.n());
}

}  // namespace

absl::Status AdapterProducts::AddProduct(const Stream& stream, const TensorView& x, const ops::Weight& w,
                                         const TensorView& y, const ops::NoiseDesc& dropout) {
  const DType acc = AccDType(w.dtype());
  if (y.dtype() == acc && !dropout.on()) return ops::Gemm(stream, {.accumulate = true}, x, w, TensorView(), y);
  const TensorView sums = sums_.Rows(y.dim(0), y.dim(1), acc);
  RETURN_IF_ERROR(ops::Gemm(stream, {}, x, w, TensorView(), sums));
  if (dropout.on()) return ops::AddDropped(stream, dropout, sums, y);
  ops::AddRounded(stream, sums, y);
  return absl::OkStatus();
}

absl::StatusOr<TensorView> AdapterProducts::Dropped(const Stream& stream, const TensorView& x,
                                                    const ops::NoiseDesc& dropout) {
  if (!dropout.on()) return x;
  const TensorView y = dropped_.Rows(x.dim(0), x.dim(1), x.dtype());
  RETURN_IF_ERROR(ops::Dropout(stream, dropout, x, y));
  return y;
}

absl::StatusOr<TensorView> AdapterProducts::Scaled(const Stream& stream, const TensorView& x, const ops::Weight& w,
                                                   double scale, moe::RowScratch* scratch) {
  const TensorView y = scratch->Rows(x.dim(0), w.n(), w.dtype());
  RETURN_IF_ERROR(ops::Gemm(stream, {}, x, w, TensorView(), y));
  ops::ScaleRows(stream, scale, y);
  return y;
}

absl::Status AdapterProducts::Add(const Stream& stream, const std::vector<AdapterWeights>& adapters,
                                  const TensorView& x, const TensorView& y, const ops::NoiseDesc& dropout) {
  for (const AdapterWeights& adapter : adapters) {
    ASSIGN_OR_RETURN(const TensorView input, Dropped(stream, x, OfAdapter(dropout, adapter)));
    ASSIGN_OR_RETURN(const TensorView u, Scaled(stream, input, adapter.a, adapter.scale, &u_));
    RETURN_IF_ERROR(AddProduct(stream, u, adapter.b, OutputOf(adapter, y)));
  }
  return absl::OkStatus();
}

absl::Status AdapterProducts::Backward(const Stream& stream, const std::vector<AdapterWeights>& adapters,
                                       absl::Span<const AdapterGradients> gradients, const TensorView& dy,
                                       const TensorView& x, const TensorView& dx, const ops::NoiseDesc& dropout) {
  for (size_t i = 0; i < adapters.size(); ++i) {
    const AdapterWeights& adapter = adapters[i];
    const TensorView d = OutputOf(adapter, dy);
    const ops::NoiseDesc own = OfAdapter(dropout, adapter);
    ASSIGN_OR_RETURN(const TensorView input, Dropped(stream, x, own));
    ASSIGN_OR_RETURN(const TensorView u, Scaled(stream, input, adapter.a, adapter.scale, &u_));
    ASSIGN_OR_RETURN(const TensorView du, Scaled(stream, d, *gradients[i].b.transposed, adapter.scale, &du_));
    RETURN_IF_ERROR(ops::WeightGradient(stream, d, u, gradients[i].b.gradient));
    RETURN_IF_ERROR(ops::WeightGradient(stream, du, input, gradients[i].a.gradient));
    RETURN_IF_ERROR(AddProduct(stream, du, *gradients[i].a.transposed, dx, own));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::model
