// The functions of cuBLASLt that gemm_cuda.cu calls: each passes its call on.
#include <cublasLt.h>

#include "workers/tensor/cuda/late_library.h"

namespace {

switchyard::LateLibrary library(SY_LATE_LIBRARY,
                                {"cublasLtCreate", "cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic",
                                 "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy",
                                 "cublasLtMatmulDescSetAttribute", "cublasLtMatmulPreferenceCreate",
                                 "cublasLtMatmulPreferenceDestroy", "cublasLtMatmulPreferenceSetAttribute",
                                 "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy"});

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { SY_CALL_LATE(library, cublasLtCreate, handle); }

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  SY_CALL_LATE(library, cublasLtMatmul, handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
               algo, workspace, workspace_bytes, stream);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  SY_CALL_LATE(library, cublasLtMatmulAlgoGetHeuristic, handle, desc, a, b, c, d, preference, requested, results,
               found);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  SY_CALL_LATE(library, cublasLtMatmulDescCreate, desc, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  SY_CALL_LATE(library, cublasLtMatmulDescDestroy, desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  SY_CALL_LATE(library, cublasLtMatmulDescSetAttribute, desc, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  SY_CALL_LATE(library, cublasLtMatmulPreferenceCreate, preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  SY_CALL_LATE(library, cublasLtMatmulPreferenceDestroy, preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  SY_CALL_LATE(library, cublasLtMatmulPreferenceSetAttribute, preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  SY_CALL_LATE(library, cublasLtMatrixLayoutCreate, layout, type, rows, columns, stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  SY_CALL_LATE(library, cublasLtMatrixLayoutDestroy, layout);
}
