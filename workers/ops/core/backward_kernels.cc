#include "workers/ops/core/backward_kernels.h"

#include "workers/ops/core/kernel_isa.h"

namespace switchyard::ops {

namespace baseline {
extern const ops::BackwardKernelTable kBackwardTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const BackwardKernelTable kBackwardTable;
}
namespace avx512 {
extern const BackwardKernelTable kBackwardTable;
}
#endif

const BackwardKernelTable& BackwardKernels() {
#if defined(__x86_64__)
  const Isa isa = KernelIsa();
  if (isa >= Isa::kAvx512) return avx512::kBackwardTable;
  if (isa >= Isa::kAvx2) return avx2::kBackwardTable;
#endif
  return baseline::kBackwardTable;
}

}  // namespace switchyard::ops
