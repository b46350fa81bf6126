// How far an op may be from its double-precision reference: one table for all ops.
//
// Inputs of a test are rounded to the dtype before the reference sees them, so what remains is the op's own rounding.
#pragma once

#include "workers/tensor/dtype.h"

namespace switchyard::reference {

struct Tolerance {
  double relative;  // of the largest magnitude of the row that is compared
};

// A single rounding to the dtype and short sums.
constexpr Tolerance ElementwiseTolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return {1e-14};
    case DType::kF32:
      return {1e-6};
    case DType::kF16:
      return {2e-3};  // 2^-10, twice rounded
    default:
      return {1.6e-2};  // bf16: 2^-7, twice rounded
  }
}

// Sums over a row, a softmax or a context.
constexpr Tolerance ReductionTolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return {1e-13};
    case DType::kF32:
      return {5e-6};
    case DType::kF16:
      return {3e-3};
    default:
      return {2e-2};
  }
}

}  // namespace switchyard::reference
