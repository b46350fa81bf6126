// Chooses among the kernels of attention by the call's arguments alone, so that all steps of a session choose alike.
#include <cuda_runtime.h>

#include <cstdint>

#include "workers/ops/core/kernels_cuda.h"
#include "workers/ops/cuda/attention_cuda.h"
#include "workers/ops/cuda/gemm_problem_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int64_t kVectorElems = 8;         // of 16 bytes
constexpr int64_t kNarrowHead = 128;        // elements; up to it 100 KB of shared memory are enough
constexpr int kWideHeadShared = 194 << 10;  // bytes of a block beyond it: Hopper has them, an A100 does not

bool Aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool TensorCoresTake(const CudaAttentionArgs& a) {
  return (a.dtype == kCudaBf16 || a.dtype == kCudaF16) && a.head_dim % kVectorElems == 0 && a.head_dim <= 256 &&
         a.q_stride % kVectorElems == 0 && a.out_stride % kVectorElems == 0 && Aligned(a.q) && Aligned(a.out) &&
         Aligned(a.k_cache) && Aligned(a.v_cache) && a.scale > 0;
}

}  // namespace

int Attention(const CudaCall& call, const CudaAttentionArgs& args) {
  if (!TensorCoresTake(args)) return AttentionPlain(call, args);
  if (args.head_dim > kNarrowHead) {
    int shared = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, call.device);
    if (error != cudaSuccess) return error;
    if (shared < kWideHeadShared) return AttentionPlain(call, args);
  }
  const bool wgmma = !call.deterministic && args.head_dim <= kNarrowHead && TakesWgmma(call.device);
  const int error = wgmma ? AttentionPrefillWgmma(call, args) : AttentionPrefill(call, args);
  return error != 0 ? error : AttentionDecode(call, args);
}

}  // namespace switchyard::ops::cuda
