#include "workers/ops/core/kernels.h"

#include <atomic>

#include "workers/ops/core/isa.h"
#include "workers/tensor/dtype.h"

namespace switchyard::ops {

// Kernel files count dtypes by these values (VisitElem in simd.h).
static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kF64) == 1 &&
              static_cast<int>(DType::kBf16) == 2 && static_cast<int>(DType::kF16) == 3);

namespace baseline {
extern const ops::KernelTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512_bf16 {
void AttentionBf16(const AttentionTask& task);
}
namespace amx {
void AttentionBf16(const AttentionTask& task);
}
#endif

namespace {

#if defined(__x86_64__)
KernelTable With(void (*attention_bf16)(const AttentionTask& task), KernelTable table) {
  table.attention_bf16 = attention_bf16;
  return table;
}
#endif

const KernelTable& TableFor(Isa isa) {
#if defined(__x86_64__)
  static const KernelTable amx_table = With(amx::AttentionBf16, avx512::kTable);
  static const KernelTable bf16_table = With(avx512_bf16::AttentionBf16, avx512::kTable);
  if (isa >= Isa::kAmx) return amx_table;
  if (isa >= Isa::kAvx512Bf16) return bf16_table;
  if (isa >= Isa::kAvx512) return avx512::kTable;
  if (isa >= Isa::kAvx2) return avx2::kTable;
#endif
  static_cast<void>(isa);
  return baseline::kTable;
}

std::atomic<const KernelTable*>& Current() {
  static std::atomic<const KernelTable*> table{&TableFor(CurrentIsa())};
  return table;
}

}  // namespace

const KernelTable& CpuKernels() { return *Current().load(std::memory_order_relaxed); }

void UseKernelsForTest(Isa isa) { Current().store(&TableFor(isa)); }

}  // namespace switchyard::ops
