#include "workers/ops/kernels.h"

#include "scheduler/base/check.h"
#include "workers/ops/isa.h"
#include "workers/tensor/dtype.h"

namespace switchyard {

// Kernel files count dtypes by these values (VisitElem in simd.h).
static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kF64) == 1 &&
              static_cast<int>(DType::kBf16) == 2 && static_cast<int>(DType::kF16) == 3);

namespace baseline {
extern const KernelTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
#endif

const KernelTable& CpuKernels() {
#if defined(__x86_64__)
  if (CurrentIsa() >= Isa::kAvx512) return avx512::kTable;
  if (CurrentIsa() >= Isa::kAvx2) return avx2::kTable;
#endif
  return baseline::kTable;
}

}  // namespace switchyard
