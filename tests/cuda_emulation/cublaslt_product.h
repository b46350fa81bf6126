// cuBLASLt's descriptors, and the product that a stream runs.
#pragma once

#include <cublasLt.h>

struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;  // D's
  int32_t sm_count = 0;
};

struct cublasLtMatrixLayoutOpaque_t {
  uint32_t type;
  int32_t order = CUBLASLT_ORDER_COL;
  uint64_t rows, cols;
  int64_t ld;
  int32_t batch = 1;
  int64_t batch_stride = 0;
};

namespace cuda_emulation {

using Desc = cublasLtMatmulDescOpaque_t;
using Layout = cublasLtMatrixLayoutOpaque_t;

struct Sizes {
  int64_t m, n, k;
};

// One call, by value: what the stream runs.
struct Product {
  Desc desc;
  Layout a_layout, b_layout, c_layout, d_layout;
  const void *a, *b, *c;
  void* d;
  double alpha, beta;
  const void *device_alpha, *device_beta;  // in device pointer mode
  void* workspace;
  size_t workspace_bytes;
  Sizes size;
};

bool IsComputed64(const Desc& desc);

// Element i of an array of that cudaDataType_t.
double ReadElement(const void* base, uint32_t type, int64_t i);

// cudaErrorIllegalAddress if an operand reaches out of its allocation.
cudaError_t RunProduct(const Product& p);

}  // namespace cuda_emulation
