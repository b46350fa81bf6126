// A linear map from the rows that enter one MoE layer's experts to the router logits of a later layer, fitted by ridge
// regression in closed form (scheduler/PAPERS.md, "Probe"):
//   f = [x; 1],  y = logits - mean(logits) per row,  W = (Σ f fᵀ + λ I)⁻¹ Σ f yᵀ
// Its top-k predicts, one or two layers ahead, what a gate will choose.
//
// Sums are in double precision and add rows in the order in which they come, so that a fit does not depend on threads
// or batches.  Memory: 8 (H + 1) (H + 1 + A E) bytes for A targets: 34 MB at H = 2048. Thread-compatible.  Does not
// choose rows, nor predict (gate_forecast.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// Whether every element is a finite number.  REQUIRES: on the CPU, a floating dtype.
bool AllFinite(const TensorView& rows);

class RidgeProbe {
 public:
  // One target for each later layer that is predicted from these rows.  REQUIRES: all >= 1.
  RidgeProbe(int64_t hidden, int64_t num_experts, int num_targets);

  // Rows whose logits of every target are known.  logits[a] is [T, E] of target a.  Adds nothing on an error.
  // Errors (InvalidArgument): shapes or dtypes that do not fit, tensors elsewhere than on the CPU, a number that is not
  // finite.
  absl::Status Add(const Stream& stream, const TensorView& x,  // [T, H] any floating dtype
                   const std::vector<TensorView>& logits);     // [A] of [T, E] any floating dtype

  int64_t num_rows() const { return num_rows_; }
  int64_t num_features() const { return width_; }  // H + 1
  int num_targets() const { return static_cast<int>(cross_.size()); }

  // The fitted map of a target, fp64 [E, H + 1], the bias last.  FailedPrecondition, with both numbers: fewer rows than
  // H + 1, whose map says more about these rows than about the model.
  absl::StatusOr<Tensor> Solve(const Stream& stream, int target, double lambda = 1.0) const;

 private:
  absl::Status Check(const TensorView& x, const std::vector<TensorView>& logits) const;

  const int64_t width_;  // H + 1
  const int64_t num_experts_;
  int64_t num_rows_ = 0;
  std::vector<double> gram_;                // [H + 1, H + 1] upper triangle of Σ f fᵀ
  std::vector<std::vector<double>> cross_;  // [A] of [H + 1, E]: Σ f yᵀ
};

}  // namespace switchyard::moe
