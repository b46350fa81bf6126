// The products of low-rank adapters, beside those of the matrix W that they adapt, and their backward:
//
//   u = scale * a x,  y += b u;   dB += dyᵀ u,  dA += (scale * dy b)ᵀ x,  dx += (scale * dy b) a
//
// With dropout the x of u and dA is Dropout(x), other numbers of each adapter's, and what dx gets is dropped likewise.
// Forward keeps nothing: backward computes u again.  Scratch is kept from call to call.  Thread-compatible.  CPU only.
// Errors: the products', for shapes that do not fit.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/model/backward/model_gradients.h"
#include "workers/model/weights/weights.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/ops/dropout/dropout.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

class AdapterProducts {
 public:
  absl::Status Add(const Stream& stream, const std::vector<AdapterWeights>& adapters,
                   const TensorView& x,  // [T, k] model dtype
                   const TensorView& y,  // [T, all n] model dtype or AccDType, after W's product
                   const ops::NoiseDesc& dropout = {});
  // gradients: of these adapters, in their order; added to.
  absl::Status Backward(const Stream& stream, const std::vector<AdapterWeights>& adapters,
                        absl::Span<const AdapterGradients> gradients,
                        const TensorView& dy,  // [T, all n] model dtype
                        const TensorView& x,   // [T, k] model dtype
                        const TensorView& dx,  // [T, k] model dtype, after W's share
                        const ops::NoiseDesc& dropout = {});

 private:
  // y += x · wᵀ, dropped
  absl::Status AddProduct(const Stream& stream, const TensorView& x, const ops::Weight& w, const TensorView& y,
                          const ops::NoiseDesc& dropout = {});
  absl::StatusOr<TensorView> Dropped(const Stream& stream, const TensorView& x, const ops::NoiseDesc& dropout);
  // scale * x · wᵀ
  absl::StatusOr<TensorView> Scaled(const Stream& stream, const TensorView& x, const ops::Weight& w, double scale,
                                    moe::RowScratch* scratch);

  moe::RowScratch u_, du_;   // [T, r]
  moe::RowScratch sums_;     // [T, n] AccDType, of models in 16 bits, or with dropout
  moe::RowScratch dropped_;  // [T, k]
};

}  // namespace switchyard::model
