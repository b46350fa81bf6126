// In the place of onednn_gemm.cc where the configuration found no oneDNN.
#include "tests/bench/onednn_gemm.h"

namespace switchyard {

absl::StatusOr<std::unique_ptr<OneDnnGemm>> OneDnnGemm::Create(int64_t, const TensorView&, int) {
  return absl::UnimplementedError("onednn: this build is without it");
}

}  // namespace switchyard
