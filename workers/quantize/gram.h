// Sums of the products of a matrix's inputs, H = Xᵀ X, and their factor: what GPTQ knows of the inputs.
//
// Products are in fp32 within a batch of rows, sums over batches in fp64.  Thread-compatible; works on the stream's
// threads.  The same rows in the same batches give the same bits on any number of threads.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::quantize {

class Gram {
 public:
  explicit Gram(int64_t columns) : sums_(Tensor::Zeros(DType::kF64, {columns, columns})) {}

  // x: [T, columns] of a floating dtype; T >= 0.
  absl::Status Add(const Stream& stream, const TensorView& x);
  int64_t rows() const { return rows_; }
  // [columns, columns] fp64: what is on the diagonal and below; above are zeros, or the same.
  const TensorView& sums() const { return sums_; }

  // The bytes that Add and FactorInPlace need beside the sums, at most.
  static int64_t ScratchBytes(int64_t columns, int64_t rows);

 private:
  Tensor sums_;
  int64_t rows_ = 0;
};

// Replaces H, of which it reads what is on the diagonal and below, by the upper triangular R, zeros below, for which R
// Rᵀ = H + damping · mean of H's diagonal · I.  Blocked; products are by ops::Gemm.  FailedPrecondition: H is zero or
// has values that are not finite.
absl::Status FactorInPlace(const Stream& stream, double damping, const TensorView& sums);  // [k, k] fp64

}  // namespace switchyard::quantize
