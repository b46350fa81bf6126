// y = x · wᵀ, y += x · wᵀ (+ bias), or SwiGLU of both halves: cuBLASLt where ChooseDense() says so, else our kernels.
//
// cuBLASLt is column-major: y's rows are columns of the N x M matrix op(w) · x, with w transposed, so its bias, one
// value a row, is ours, one value a column of y.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "workers/ops/cuda/device_cuda.h"
#include "workers/ops/cuda/gemm_problem_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"
#include "workers/ops/gemm/cublas_refusals.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kBiasThreads = 256;
constexpr int kMaxDevices = 64;
constexpr size_t kMaxCachedShapes = 4096;  // prefills come with any number of rows

// y[i][j] += bias[j], where the library's epilogue does not take this pair of types.
template <class Elem, class Out>
__global__ void __launch_bounds__(kBiasThreads) AddBiasKernel(const Elem* bias,  // [N]
                                                              Out* y,            // [M, N]
                                                              int64_t n, int64_t y_stride) {
  WaitForPrecedingKernel();
  LaunchDependents();
  for (int64_t j = threadIdx.x; j < n; j += kBiasThreads) y[blockIdx.x * y_stride + j] += Widen(bias[j]);
}

template <class Elem, class Out>
int AddBias(const CudaCall& call, const CudaGemmArgs& args) {
  return Launch(ConfigOf(call, Grid(args.rows), kBiasThreads), AddBiasKernel<Elem, Out>,
                static_cast<const Elem*>(args.bias), static_cast<Out*>(args.y), args.n, args.y_stride);
}

cudaDataType_t DataType(uint8_t dtype) {
  switch (dtype) {
    case kCudaF64:
      return CUDA_R_64F;
    case kCudaBf16:
      return CUDA_R_16BF;
    case kCudaF16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// The key of the library's choice.
struct ShapeKey {
  int64_t m, n, k, x_stride, w_stride, y_stride;
  int64_t alignment;  // of x, w and y in bytes, up to 256
  uint8_t dtype, y_dtype;
  bool bias, accumulate;

  auto operator<=>(const ShapeKey&) const = default;
};

// The epilogue's bias has the type of y, and fp64 has no such epilogue; others are added by a kernel of ours.
bool BiasInEpilogue(const CudaGemmArgs& args) {
  return args.bias != nullptr && args.y_dtype == args.dtype && args.dtype != kCudaF64;
}

// One shape as the library sees it, with the algorithm that its heuristic names.
class PlannedProduct {
 public:
  PlannedProduct() = default;
  PlannedProduct(const PlannedProduct&) = delete;
  PlannedProduct& operator=(const PlannedProduct&) = delete;
  ~PlannedProduct() {
    for (cublasLtMatrixLayout_t layout : {w_, x_, y_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (desc_ != nullptr) cublasLtMatmulDescDestroy(desc_);
  }

  // bias: any of the shape's; the heuristic may decline an epilogue without one.
  bool Plan(cublasLtHandle_t handle, const ShapeKey& key, const void* bias) {
    const cudaDataType_t type = DataType(key.dtype), y_type = DataType(key.y_dtype);
    const bool fp64 = key.dtype == kCudaF64;
    const cublasOperation_t transpose = CUBLAS_OP_T, keep = CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    return Good(cublasLtMatmulDescCreate(&desc_, fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                         fp64 ? CUDA_R_64F : CUDA_R_32F)) &&
           SetDesc(CUBLASLT_MATMUL_DESC_TRANSA, transpose) && SetDesc(CUBLASLT_MATMUL_DESC_TRANSB, keep) &&
           SetDesc(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue) &&
           (!key.bias ||
            (SetDesc(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type) && SetDesc(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias))) &&
           Good(cublasLtMatrixLayoutCreate(&w_, type, key.k, key.n, key.w_stride)) &&
           Good(cublasLtMatrixLayoutCreate(&x_, type, key.k, key.m, key.x_stride)) &&
           Good(cublasLtMatrixLayoutCreate(&y_, y_type, key.n, key.m, key.y_stride)) && AskHeuristic(handle, key);
  }

  bool Enqueue(cublasLtHandle_t handle, const CudaCall& call, const CudaGemmArgs& args) {
    if (BiasInEpilogue(args) && !SetDesc(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias)) return false;
    const double alpha64 = 1, beta64 = args.accumulate ? 1 : 0;
    const float alpha32 = 1, beta32 = args.accumulate ? 1 : 0;
    const bool fp64 = args.dtype == kCudaF64;
    const void* alpha = fp64 ? static_cast<const void*>(&alpha64) : &alpha32;
    const void* beta = fp64 ? static_cast<const void*>(&beta64) : &beta32;
    return Good(cublasLtMatmul(handle, desc_, alpha, args.weight, w_, args.x, x_, beta, args.y, y_, args.y, y_, &algo_,
                               call.workspace, static_cast<size_t>(kCudaWorkspaceBytes),
                               static_cast<cudaStream_t>(call.stream)));
  }

 private:
  static bool Good(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }

  template <class Value>
  bool SetDesc(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    return Good(cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof(value)));
  }

  bool AskHeuristic(cublasLtHandle_t handle, const ShapeKey& key) {
    cublasLtMatmulPreference_t preference = nullptr;
    if (!Good(cublasLtMatmulPreferenceCreate(&preference))) return false;
    const uint64_t workspace = static_cast<uint64_t>(kCudaWorkspaceBytes);
    bool good = Good(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                          &workspace, sizeof(workspace)));
    const uint32_t alignment = static_cast<uint32_t>(key.alignment);
    for (cublasLtMatmulPreferenceAttributes_t side :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      good = good && Good(cublasLtMatmulPreferenceSetAttribute(preference, side, &alignment, sizeof(alignment)));
    }
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    good = good && Good(cublasLtMatmulAlgoGetHeuristic(handle, desc_, w_, x_, y_, y_, preference, 1, &result, &found));
    cublasLtMatmulPreferenceDestroy(preference);
    algo_ = result.algo;
    return good && found == 1 && Good(result.state);
  }

  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
  cublasLtMatmulAlgo_t algo_ = {};
};

// The library's handle on one device, and the shapes of earlier products: one for the whole process, never destroyed
// (the driver may shut down before its destructor).  Thread-safe; enqueues one product at a time.
class CublasDevice {
 public:
  static CublasDevice& Of(int device) {
    static auto* const devices = new std::array<CublasDevice, kMaxDevices>;
    return (*devices)[static_cast<size_t>(device) % kMaxDevices];
  }

  // False: the library refuses; nothing was enqueued.  REQUIRES: call.device is current.
  bool Enqueue(const CudaCall& call, const CudaGemmArgs& args) {
    const ShapeKey key = {.m = args.rows,
                          .n = args.n,
                          .k = args.k,
                          .x_stride = args.x_stride,
                          .w_stride = args.w_stride,
                          .y_stride = args.y_stride,
                          .alignment = CommonAlignment(args),
                          .dtype = args.dtype,
                          .y_dtype = args.y_dtype,
                          .bias = BiasInEpilogue(args),
                          .accumulate = args.accumulate};
    const std::lock_guard<std::mutex> lock(mu_);
    if (handle_ == nullptr && cublasLtCreate(&handle_) != CUBLAS_STATUS_SUCCESS) return false;
    if (planned_.size() >= kMaxCachedShapes) planned_.clear();
    const auto [entry, is_new] = planned_.try_emplace(key);
    if (is_new) {
      auto product = std::make_unique<PlannedProduct>();
      // Else null: refused, now and later.
      if (product->Plan(handle_, key, args.bias)) entry->second = std::move(product);
    }
    return entry->second != nullptr && entry->second->Enqueue(handle_, call, args);
  }

 private:
  std::mutex mu_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<ShapeKey, std::unique_ptr<PlannedProduct>> planned_;
};

}  // namespace

int DenseGemm(const CudaCall& call, const CudaGemmArgs& args) {
  if (args.rows == 0 || args.n == 0) return cudaSuccess;
  if (args.format != kCudaPlainRows) return BitsGemm(call, args);
  const GemmProblem problem = ProblemOf(args);
  const CudaGemmDesc desc = DescOf(call, problem, /*grouped=*/false);
  const CudaGemmConfig config = ChooseDense(desc);
  if (config.kind != CudaGemmKind::kCublasLt) return LaunchGemm(call, problem, config);
  if (!CublasDevice::Of(call.device).Enqueue(call, args)) {
    CountCublasRefusal(desc);
    return LaunchGemm(call, problem, ChooseOwnDense(desc));
  }
  if (args.bias == nullptr || BiasInEpilogue(args)) return cudaSuccess;
  if (args.dtype == kCudaF64) return AddBias<double, double>(call, args);
  return args.dtype == kCudaBf16 ? AddBias<__nv_bfloat16, float>(call, args) : AddBias<__half, float>(call, args);
}

}  // namespace switchyard::ops::cuda
