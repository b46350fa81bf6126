// In the place of onednn_gemm.cc where oneDNN is not built in (SY_ONEDNN=OFF: the sanitizer builds).
#include "workers/ops/gemm/onednn_gemm.h"

namespace switchyard {

absl::StatusOr<std::unique_ptr<OneDnnGemm>> OneDnnGemm::Create(int64_t, const TensorView&, int) {
  return absl::UnimplementedError("onednn: this build is without it");
}

}  // namespace switchyard
