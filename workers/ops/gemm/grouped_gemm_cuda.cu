// y[i] = x[x_rows[i]] · weights[e]ᵀ for rows i in [offsets[e], offsets[e + 1]): our own kernels, for dense products,
// too.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "workers/ops/cuda/gemm_fill_cuda.h"
#include "workers/ops/cuda/gemm_plain_cuda.h"
#include "workers/ops/cuda/gemm_plan_cuda.h"
#include "workers/ops/cuda/gemm_problem_cuda.h"
#include "workers/ops/cuda/gemm_tile_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kPlainThreads = kCudaPlainTile * kCudaPlainTile;

// Prefetches to L2 the weights that this CTA reads first, before the preceding kernel is done: a hint, so it does not
// matter whether that kernel writes them.  Dense products only, as experts are not known yet.
template <class Elem, class Shape>
__device__ void PrefetchWeights(const GemmProblem& p) {
  constexpr int kLineBytes = 128;
  constexpr int kLines = (Shape::kStages - 1) * Shape::kDepth * 2 / kLineBytes;  // of each row
  if (p.weight == nullptr || p.gated) return;
  const int64_t column_tile = blockIdx.x / ((p.rows + Shape::kRows - 1) / Shape::kRows);
  for (int i = threadIdx.x; i < Shape::kColumns * kLines; i += Shape::kThreads) {
    const int64_t row = column_tile * Shape::kColumns + i / kLines;
    const int64_t k = i % kLines * (kLineBytes / 2);
    if (row < p.n && k < p.k) PrefetchToL2(static_cast<const Elem*>(p.weight) + row * p.w_stride + k);
  }
}

template <class Elem, int kTile>
__global__ void __launch_bounds__(TileShape<kTile>::kThreads, TileShape<kTile>::kT.ctas_per_sm)
    GemmTilesKernel(const GemmProblem p) {
  using Shape = TileShape<kTile>;
  char* stages = DynamicShared<char>();
  if constexpr (Shape::kRows <= 32) PrefetchWeights<Elem, Shape>(p);
  RunTiles<TileLoader<Elem, Shape>, TileSums<Elem, Shape>, Shape>(p, stages);
}

template <class Elem, class Accum>
__global__ void __launch_bounds__(kPlainThreads) GemmPlainKernel(const GemmProblem p) {
  __shared__ Accum x[kCudaPlainTile][kCudaPlainTile + 1];
  __shared__ Accum gate[kCudaPlainTile][kCudaPlainTile + 1];
  __shared__ Accum up[kCudaPlainTile][kCudaPlainTile + 1];
  WaitForPrecedingKernel();
  LaunchDependents();
  const GemmPlan plan(p, DynamicShared<char>(), kCudaPlainTile, kCudaPlainTile);
  PlainTile<Elem, Accum> tile(p, x, gate, up);
  const int32_t num_items = plan.num_items();
  for (int32_t i = static_cast<int32_t>(blockIdx.x); i < num_items; i += static_cast<int32_t>(gridDim.x)) {
    tile.Run(plan.Find(i));
  }
}

template <class Elem>
int EnqueueTiles(const CudaCall& call, const GemmProblem& p, const CudaGemmConfig& config) {
  return VisitGemmTile(config.tile, [&]<int kTile>() -> int {
    using Shape = TileShape<kTile>;
    if constexpr (Shape::kT.wgmma) {
      return LaunchWgmma(call, p, config);
    } else {
      const int64_t shared_bytes = CudaGemmSharedBytes(Shape::kT, p.experts);
      return Launch(ConfigOf(call, Grid(config.grid), Shape::kThreads, shared_bytes), GemmTilesKernel<Elem, kTile>, p);
    }
  });
}

template <class Elem, class Accum>
int EnqueuePlain(const CudaCall& call, const GemmProblem& p, const CudaGemmConfig& config) {
  return Launch(ConfigOf(call, Grid(config.grid), kPlainThreads, CudaGemmPlanBytes(p.experts)),
                GemmPlainKernel<Elem, Accum>, p);
}

// For rows of elements of 2 bytes alone.
bool AlignedRows(const void* x, int64_t stride) {
  return reinterpret_cast<uintptr_t>(x) % 16 == 0 && 2 * stride % 16 == 0;
}

// The limit of a block of the device; asked once.
int64_t SharedBytesOfBlock(int device) {
  static std::atomic<int> known[kMaxDevicesPerProcess] = {};
  int bytes = known[device].load(std::memory_order_relaxed);
  if (bytes > 0) return bytes;
  if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) {
    return CudaGemmDesc().shared_bytes;  // the launch will say what is wrong
  }
  known[device].store(bytes, std::memory_order_relaxed);
  return bytes;
}

}  // namespace

GemmProblem ProblemOf(const CudaGemmArgs& args) {
  return {args, static_cast<int32_t>(args.gated ? args.n / 2 : args.n), AlignedRows(args.x, args.x_stride)};
}

int64_t CommonAlignment(const CudaGemmArgs& args) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.weight) |
                   reinterpret_cast<uintptr_t>(args.y) | 256;
  bits |= static_cast<uintptr_t>((args.x_stride | args.w_stride) * CudaElemBytes(args.dtype));
  bits |= static_cast<uintptr_t>(args.y_stride * CudaElemBytes(args.y_dtype));
  return static_cast<int64_t>(bits & -bits);
}

CudaGemmDesc DescOf(const CudaCall& call, const GemmProblem& p, bool grouped) {
  return {.dtype = p.dtype,
          .m = p.rows,
          .n = p.n,
          .k = p.k,
          .experts = grouped ? p.experts : 0,
          .gated = p.gated,
          .deterministic = call.deterministic,
          .aligned = CommonAlignment(p) >= 16,
          .wgmma = TakesWgmma(call.device),
          .ends_otherwise = p.own_bias > 0 || p.glu_limit > 0,
          .num_sms = std::max(call.num_sms, 1),
          .shared_bytes = SharedBytesOfBlock(call.device)};
}

int LaunchGemm(const CudaCall& call, const GemmProblem& p, const CudaGemmConfig& config) {
  if (p.rows == 0 || p.columns == 0) return cudaSuccess;
  if (config.kind == CudaGemmKind::kTiles) {
    if (p.dtype == kCudaBf16) return EnqueueTiles<__nv_bfloat16>(call, p, config);
    if (p.dtype == kCudaF16) return EnqueueTiles<__half>(call, p, config);
  } else if (config.kind == CudaGemmKind::kPlain) {
    if (p.dtype == kCudaF32) return EnqueuePlain<float, float>(call, p, config);
    if (p.dtype == kCudaF64) return EnqueuePlain<double, double>(call, p, config);
    if (p.dtype == kCudaBf16) return EnqueuePlain<__nv_bfloat16, float>(call, p, config);
    if (p.dtype == kCudaF16) return EnqueuePlain<__half, float>(call, p, config);
  }
  return cudaErrorInvalidValue;
}

int GroupedGemm(const CudaCall& call, const CudaGemmArgs& args) {
  if (args.rows == 0 || args.n == 0 || args.experts == 0) return cudaSuccess;
  if (args.format != kCudaPlainRows) return BitsGemm(call, args);
  const GemmProblem problem = ProblemOf(args);
  return LaunchGemm(call, problem, ChooseGrouped(DescOf(call, problem, /*grouped=*/true)));
}

}  // namespace switchyard::ops::cuda
