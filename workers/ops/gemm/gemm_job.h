// One or many products as one parallel loop: the common part of Gemm, GroupedGemm and the gated forms.  Internal to
// workers/ops.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "workers/ops/activation/activation.h"
#include "workers/ops/core/isa.h"
#include "workers/ops/gemm/weight_group.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

// Rows [offsets[e], offsets[e + 1]) of y are x's times weights[e]ᵀ.
struct GemmJob {
  absl::string_view op;                      // for messages
  TensorView x;                              // [rows, K], or [T, K] with x_rows
  IntView x_rows = {};                       // the row of x for each row; empty: the same row
  WeightGroup weights;                       // [El]; null where there are no rows
  IntView offsets;                           // [El + 1]; except on the CPU, y may have more rows than the last says
  absl::Span<const TensorView> biases = {};  // [El] each [N] or raw() == nullptr; or empty: there are none
  TensorView y;                              // [rows, N]; gated: [rows, N / 2]
  TensorView sums = {};                      // gated: [rows, N], gate and up before the activation, or raw() == nullptr
  bool accumulate = false;
  bool gated = false;    // y = silu(gate) * up, or as `clamp` says
  bool partial = false;  // rows with a null weight are not this job's
  Isa isa = Isa::kScalar;
  GluClamp clamp = {};
};

// That of its weights, which have all the same.
WeightFormat FormatOf(const GemmJob& job);

// Checks, then runs.
absl::Status RunGemmJob(const Stream& stream, const GemmJob& job);

// REQUIRES: checked.
void RunGemmJobOnCpu(const Stream& stream, const GemmJob& job);

}  // namespace switchyard::ops
