// y = x · wᵀ by oneDNN: the yardstick of tests/bench/gemm_bench.cc, on as many OpenMP threads as its Create was given.
//
// Serving does not use it: its kernel, and with it a row's bits, changes with the number of rows, and at the shapes of
// decode and prefill ours is as fast (gemm.md).  Built where the configuration finds oneDNN (CMakeLists.txt).
// Thread-compatible.  Owns its reordered weights.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

class OneDnnGemm {
 public:
  virtual ~OneDnnGemm() = default;
  // Errors: Unimplemented (built without oneDNN, or a dtype it does not know here), Internal (oneDNN's own words).
  static absl::StatusOr<std::unique_ptr<OneDnnGemm>> Create(int64_t m, const TensorView& w,  // [N, K] fp32 or bf16
                                                            int num_threads);
  virtual absl::Status Run(const TensorView& x,       // [m, K] w's dtype, contiguous
                           const TensorView& y) = 0;  // [m, N] fp32, contiguous
};

}  // namespace switchyard
