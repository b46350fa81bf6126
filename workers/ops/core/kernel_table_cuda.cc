#include <cuda_runtime.h>

#include "workers/ops/core/kernels_cuda.h"
#include "workers/tensor/cuda/cuda_status.h"

namespace switchyard::ops {
namespace {

const char* ErrorString(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
bool DeviceLost(int error) { return CudaDeviceLost(static_cast<cudaError_t>(error)); }

}  // namespace

void RegisterCudaOps() {
  static constexpr CudaKernelTable kTable = {
      .embed = cuda::Embed,
      .rms_norm = cuda::RmsNorm,
      .rope = cuda::Rope,
      .clamp = cuda::Clamp,
      .combine = cuda::Combine,
      .router = cuda::Router,
      .expert_order = cuda::ExpertOrder,
      .count_experts = cuda::CountExperts,
      .gather = cuda::Gather,
      .dense_gemm = cuda::DenseGemm,
      .grouped_gemm = cuda::GroupedGemm,
      .write_kv = cuda::WriteKv,
      .attention = cuda::Attention,
      .qkv = cuda::Qkv,
      .resolve_tokens = cuda::ResolveTokens,
      .sample = cuda::Sample,
      .expert_places = cuda::ExpertPlaces,
      .count_routes = cuda::CountRoutes,
      .pack_rows = cuda::PackRows,
      .read_pairs = cuda::ReadPairs,
      .place_pairs = cuda::PlacePairs,
      .error_string = ErrorString,
      .device_lost = DeviceLost,
  };
  SetCudaKernels(&kTable);
}

}  // namespace switchyard::ops
