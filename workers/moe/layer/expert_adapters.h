// Low-rank adapters (LoRA) of experts' matrices, in training: what they add to the grouped products of a layer, and
// their backward.  Of an expert's matrix W with A [r, k] and B [n, r], over the rows that came to it:
//
//   y += scale * (x · Aᵀ) · Bᵀ
//   dx += scale * (dy · B) · A,   dB += dyᵀ · (scale * x · Aᵀ),   dA += (scale * dy · B)ᵀ · x
//
// Forward keeps nothing for them: backward computes x · Aᵀ again.  Products over r are rounded to the model's dtype,
// what is added to y and dx once.  A row's bits depend on that row and its expert alone; gradients are added up as in
// weight_gradient.h.  Weights are borrowed; scratch is kept from call to call.  Thread-compatible.  CPU only.
// Errors: the products', for shapes that do not fit.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/ops/gemm/backward/trained_matrix.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/weight.h"
#include "workers/ops/gemm/weight_group.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// Of one matrix of each expert of a layer.
struct ExpertAdapters {
  std::vector<const ops::Weight*> a = {}, b = {};  // [El] by slot: [r, k] and [n, r]; both empty: none
  double scale = 1;
  bool any() const { return !a.empty(); }
};

// Training's data of the same: transposes, and gradients, which are TensorView() of what is frozen.
struct TrainedExpertAdapters {
  std::vector<const ops::Weight*> a_transposed = {}, b_transposed = {};  // [El] [k, r] and [r, n]
  std::vector<TensorView> a_gradients = {}, b_gradients = {};            // [El] [r, k] and [n, r] AccDType
  void Add(const ops::TrainedAdapter& adapter);                          // of the next slot
};

// The rows of each expert: those of y and dy are in the experts' order, row i of x is x_rows[i] if there are any, as in
// GroupedGemmDesc.
struct AdaptedRows {
  IntView offsets = {};  // [El + 1]
  IntView x_rows = {};
};

// The adapters of an expert's two matrices.
struct AdaptedFfn {
  const ExpertAdapters* gate_up = nullptr;  // a [r, H], b [2F, r]
  const ExpertAdapters* down = nullptr;     // a [r, F], b [H, r]
};

class ExpertAdapterProducts {
 public:
  // ops::ExpertHidden and ops::ExpertFfn of experts with adapters; desc.sums are the sums with what adapters add.
  // REQUIRES: SwiGLU without biases and without a clamp.
  absl::Status Hidden(const Stream& stream, const AdaptedFfn& adapters, ops::ExpertFfnDesc desc, const TensorView& x,
                      const TensorView& hidden);
  absl::Status Ffn(const Stream& stream, const AdaptedFfn& adapters, const ops::ExpertFfnDesc& desc,
                   const TensorView& x, const TensorView& hidden, const TensorView& y);

  // The next three do nothing if there are no adapters.
  absl::Status Add(const Stream& stream, const ExpertAdapters& adapters, const AdaptedRows& rows,
                   const TensorView& x,   // [rows, k] or, with x_rows, [T, k] model dtype
                   const TensorView& y);  // [rows, n] model dtype or AccDType, after W's product
  // rows.x_rows: of dy.
  absl::Status AddInputGradient(const Stream& stream, double scale, const TrainedExpertAdapters& trained,
                                const AdaptedRows& rows,
                                const TensorView& dy,   // [rows, n] or, with x_rows, [T, n] model dtype
                                const TensorView& dx);  // [rows, k] model dtype or AccDType, after W's share
  absl::Status AddGradients(const Stream& stream, const ExpertAdapters& adapters, const TrainedExpertAdapters& trained,
                            const AdaptedRows& rows,
                            const TensorView& dy,  // [rows, n] model dtype
                            const TensorView& x);  // [rows, k] or, with x_rows, [T, k] model dtype

 private:
  // [rows, n] scale * x · wᵀ in w's dtype
  absl::StatusOr<TensorView> Scaled(const Stream& stream, const ops::WeightGroup& w, double scale,
                                    const AdaptedRows& rows, const TensorView& x, RowScratch* scratch);
  // y += x · wᵀ; x in the experts' order
  absl::Status AddProduct(const Stream& stream, const ops::WeightGroup& w, const IntView& offsets, const TensorView& x,
                          const TensorView& y);

  RowScratch u_, du_;       // [rows, r]
  RowScratch products_;     // [rows, n] AccDType
  RowScratch hidden_sums_;  // [rows, 2F], where none are kept
};

}  // namespace switchyard::moe
