// One matrix product per expert over rows that are sorted by expert: y[i] = x[i] · w[expert of i]ᵀ, without padding.
//
// The same bits per row as Gemm with that expert's weight alone.  Tasks are (expert, rows, panels), so all threads
// share an expert with many rows, and experts without rows cost nothing.  Blocks until done.  Thread-compatible per
// stream.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/ops/activation/activation.h"
#include "workers/ops/core/isa.h"
#include "workers/ops/gemm/weight_group.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct GroupedGemmDesc {
  // If not empty: row i of the product is row x_rows[i] of x, so that tokens need not be copied into expert order first
  // (ExpertOrder::token).  [rows], each in [0, x.dim(0)).
  IntView x_rows = {};
  // Rows of experts with a null weight are left as they are, for another call.  On a device the weight is null in the
  // group's list there, too.
  bool partial = false;
  // [El] or empty: y[i] += biases[expert of i], each [N] w's dtype.  On the CPU, not of gated products (Unimplemented).
  absl::Span<const TensorView> biases = {};
  // GroupedGatedGemm alone, on the CPU: see GatedGemm.
  TensorView sums = {};
  // GroupedGatedGemm alone.
  GluClamp clamp = {};
  Isa isa = CurrentIsa();  // tests only
};

// Errors (InvalidArgument): shapes or dtypes that do not fit, offsets that fall or do not end at y's rows, a row
// outside x.
absl::Status GroupedGemm(const Stream& stream, const GroupedGemmDesc& desc,
                         const TensorView& x,         // [rows, K] w's dtype, or [T, K] with x_rows
                         const WeightGroup& experts,  // [El] each [N, K] kPanels; unused ones may be null
                         const IntView& offsets,      // [El + 1] rows of expert e: [offsets[e], offsets[e+1])
                         const TensorView& y);        // [rows, N] w's dtype or AccDType

}  // namespace switchyard::ops
