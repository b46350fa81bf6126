#include <atomic>

#include "workers/ops/core/kernels_cuda.h"

namespace switchyard::ops {
namespace {

std::atomic<const CudaKernelTable*> cuda_kernels{nullptr};

}  // namespace

const CudaKernelTable* CudaKernels() { return cuda_kernels.load(std::memory_order_acquire); }

void SetCudaKernels(const CudaKernelTable* table) { cuda_kernels.store(table, std::memory_order_release); }

}  // namespace switchyard::ops
