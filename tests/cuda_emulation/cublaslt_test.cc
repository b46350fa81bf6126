// cuBLASLt's stand-in: layouts, transposes, bias, scaling, what it refuses.
#include <cublasLt.h>
#include <cuda_bf16.h>

#include "tests/cuda_emulation/test_kernels.h"

namespace cuda_emulation {
namespace {

// One product, column-major; every object of cuBLASLt is destroyed with it.
struct Problem {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;

  Problem(cudaDataType_t in, cudaDataType_t out, cublasComputeType_t compute, cudaDataType_t scale) {
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&desc, compute, scale);
    cublasLtMatmulPreferenceCreate(&preference);
    const int32_t trans = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof trans);
    cublasLtMatrixLayoutCreate(&a, in, 2, 3, 4);  // k = 2, m = 3, transposed, 4 apart
    cublasLtMatrixLayoutCreate(&b, in, 2, 2, 2);  // n = 2
    cublasLtMatrixLayoutCreate(&d, out, 3, 2, 3);
  }
  ~Problem() {
    for (auto layout : {a, b, d}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
  }
  cublasStatus_t Heuristic(cublasLtMatmulHeuristicResult_t* result, int* found) const {
    return cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, d, d, preference, 1, result, found);
  }
  cublasStatus_t Run(const void* alpha, const void* beta, const void* pa, const void* pb, void* pd,
                     const cublasLtMatmulAlgo_t* algo = nullptr, void* workspace = nullptr, size_t bytes = 0) const {
    return cublasLtMatmul(handle, desc, alpha, pa, a, pb, b, beta, pd, d, pd, d, algo, workspace, bytes, nullptr);
  }
};

class CublasLtTest : public EmulationTest {};

TEST_F(CublasLtTest, TransposedWithLeadingDimensionBiasAlphaAndBeta) {
  Problem problem(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  DeviceArray<float> a(std::vector<float>{1, 2, -99, -99, 3, 4, -99, -99, 5, 6});
  DeviceArray<float> b(std::vector<float>{1, 10, 2, 20}), d(std::vector<float>{1, 1, 1, 2, 2, 2});
  DeviceArray<float> bias(std::vector<float>{100, 200, 300});
  const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  const void* pointer = bias.get();
  cublasLtMatmulDescSetAttribute(problem.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  cublasLtMatmulDescSetAttribute(problem.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer, sizeof pointer);
  const float alpha = 2, beta = 3;
  ASSERT_EQ(problem.Run(&alpha, &beta, a.get(), b.get(), d.get()), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(d.Read(), (std::vector<float>{2 * 21 + 3 + 100, 2 * 43 + 3 + 200, 2 * 65 + 3 + 300, 2 * 42 + 6 + 100,
                                          2 * 86 + 6 + 200, 2 * 130 + 6 + 300}));
}

TEST_F(CublasLtTest, Bf16InAndOutAndFp64) {
  const float one = 1, zero = 0;
  Problem narrow(CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  DeviceArray<__nv_bfloat16> a(std::vector<__nv_bfloat16>{1.f, 2.f, -1.f, -1.f, 3.f, 4.f, -1.f, -1.f, 5.f, 6.f});
  DeviceArray<__nv_bfloat16> b(std::vector<__nv_bfloat16>{1.f, 10.f, 2.f, 20.f}), d(6);
  ASSERT_EQ(narrow.Run(&one, &zero, a.get(), b.get(), d.get()), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(static_cast<float>(d.Read()[4]), 86.f);

  const double one64 = 1, zero64 = 0;
  Problem wide(CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, CUDA_R_64F);
  DeviceArray<double> a64(std::vector<double>{1e-12, 0, -1, -1, 1, 0, -1, -1, 1, 0});
  DeviceArray<double> b64(std::vector<double>{1, 0, 1, 0}), d64(6);
  ASSERT_EQ(wide.Run(&one64, &zero64, a64.get(), b64.get(), d64.get()), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(d64.Read()[0], 1e-12);
}

TEST_F(CublasLtTest, RefusesWhatTheLibraryDoes) {
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  Problem mixed(CUDA_R_16BF, CUDA_R_16F, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  EXPECT_EQ(mixed.Heuristic(&result, &found), CUBLAS_STATUS_NOT_SUPPORTED);
  Problem half_sums(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_64F, CUDA_R_64F);
  EXPECT_EQ(half_sums.Heuristic(&result, &found), CUBLAS_STATUS_NOT_SUPPORTED);
  Problem problem(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const int64_t ld = 2;
  cublasLtMatrixLayoutSetAttribute(problem.d, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
  EXPECT_EQ(problem.Heuristic(&result, &found), CUBLAS_STATUS_INVALID_VALUE);
  const uint64_t rows = 5;
  Problem other(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatrixLayoutSetAttribute(other.b, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows);
  EXPECT_EQ(other.Heuristic(&result, &found), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLtTest, AnAlgorithmNeedsTheAlignmentAndTheWorkspaceItWasChosenFor) {
  Problem problem(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const uint64_t workspace_bytes = 4 << 20;
  cublasLtMatmulPreferenceSetAttribute(problem.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                       sizeof workspace_bytes);
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  ASSERT_EQ(problem.Heuristic(&result, &found), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(found, 1);
  ASSERT_GT(result.workspaceSize, 0u);
  DeviceArray<float> a(12), b(4), d(7);
  DeviceArray<char> workspace(result.workspaceSize);
  const float one = 1, zero = 0;
  auto run = [&](float* to, size_t bytes) {
    return problem.Run(&one, &zero, a.get(), b.get(), to, &result.algo, workspace.get(), bytes);
  };
  EXPECT_EQ(run(d.get(), result.workspaceSize), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run(d.get(), result.workspaceSize - 1), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(d.get() + 1, result.workspaceSize), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(CublasLtTest, AnOperandOutOfItsAllocationBreaksTheDevice) {
  Problem problem(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  DeviceArray<float> a(8), b(4), d(6);  // a needs 10
  const float one = 1, zero = 0;
  ASSERT_EQ(problem.Run(&one, &zero, a.get(), b.get(), d.get()), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  Reset();
}

}  // namespace
}  // namespace cuda_emulation
