// The feed-forward, for experts, shared experts and dense MLPs:
//   SwiGLU  y = (silu(x · gateᵀ) * (x · upᵀ)) · downᵀ
//           or, with a GluClamp, y = (min(gate, l) * sigmoid(α · min(gate, l)) * (clamp(up, -l, l) + 1)) · downᵀ
//           (gpt-oss); on the CPU so far
//   GELU    y = gelu(x · upᵀ + up_bias) · downᵀ + down_bias: two plain products, the first rounded to the model's dtype
//           before the activation (gelu.h); on the CPU so far (Unimplemented on a device)
//
// gate and up are one Weight in kGatedPanels (weight.h: rows gate then up).  The product's kernel applies the
// activation: in AccDType from the unrounded sums, rounded once to the model's dtype.  Bits per row as in gemm.h.
// Blocks until done.  Thread-compatible per stream.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/ops/activation/activation.h"
#include "workers/ops/core/isa.h"
#include "workers/ops/gemm/grouped_gemm.h"
#include "workers/ops/gemm/weight_group.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

// h = silu(x · gateᵀ) * (x · upᵀ), one weight.  Training keeps `sums` for the backward pass: x · gateᵀ and x · upᵀ,
// rounded; hidden has the same bits with and without.  Errors (InvalidArgument): shapes or dtypes that do not fit, sums
// on a device.
absl::Status GatedGemm(const Stream& stream,
                       const TensorView& x,       // [M, K] w's dtype; rows may be strided
                       const Weight& gate_up,     // [2F, K] kGatedPanels
                       const TensorView& hidden,  // [M, F] w's dtype
                       Isa isa = CurrentIsa(),
                       const TensorView& sums = {});  // [M, 2F] w's dtype: gate's F columns, then up's; or none

// The same per expert; arguments as GroupedGemm's.
absl::Status GroupedGatedGemm(const Stream& stream, const GroupedGemmDesc& desc, const TensorView& x,
                              const WeightGroup& gate_up,  // [El] each [2F, K] kGatedPanels
                              const IntView& offsets,      // [El + 1]
                              const TensorView& hidden);   // [rows, F] w's dtype

struct ExpertFfnDesc {
  Activation activation = Activation::kSwiGlu;
  WeightGroup gate_up;   // [El] each [2F, H] kGatedPanels; GELU: [F, H] kPanels
  WeightGroup down;      // [El] each [H, F] kPanels
  IntView offsets;       // [El + 1] rows of expert e: [offsets[e], offsets[e + 1])
  IntView x_rows = {};   // as in GroupedGemmDesc; empty: x is in expert order already
  bool partial = false;  // as in GroupedGemmDesc; with SwiGLU
  // [rows, 2F] or none: as GatedGemm's; GELU: [rows, F], the activation's input
  TensorView sums = {};
  absl::Span<const TensorView> up_biases = {}, down_biases = {};  // [El] each [F], [H], or empty: none; with GELU
  Isa isa = CurrentIsa();                                         // tests only
  GluClamp clamp = {};                                            // of SwiGLU
};

// Both products.  Errors (InvalidArgument): as GroupedGemm's.
absl::Status ExpertFfn(const Stream& stream, const ExpertFfnDesc& desc,
                       const TensorView& x,       // [rows, H] or, with x_rows, [T, H]
                       const TensorView& hidden,  // [rows, F] scratch, model dtype
                       const TensorView& y);      // [rows, H] model dtype: in expert order, for Combine

// The first product and the activation alone: fills in hidden, and sums.  `down` and its biases are not used.
absl::Status ExpertHidden(const Stream& stream, const ExpertFfnDesc& desc, const TensorView& x,
                          const TensorView& hidden);

// A dense MLP.
struct DenseFfnDesc {
  Activation activation = Activation::kSwiGlu;
  const Weight* gate_up = nullptr;          // as an expert's
  const Weight* down = nullptr;             // [H, F]
  TensorView up_bias = {}, down_bias = {};  // [F], [H] or none
  TensorView sums = {};                     // as above
};
// residual += its output.  Errors: as above.
absl::Status DenseFfn(const Stream& stream, const DenseFfnDesc& desc,
                      const TensorView& x,          // [T, H] model dtype
                      const TensorView& hidden,     // [T, F] scratch, model dtype
                      const TensorView& residual);  // [T, H] AccDType

}  // namespace switchyard::ops
