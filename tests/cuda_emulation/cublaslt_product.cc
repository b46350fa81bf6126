// A sum is made in fp32 (or fp64) one k after the other, then scaled, then the bias added, then rounded once; the real
// library's order is its own.  Overwrites the workspace it is given, as a split-k algorithm would.
#include "tests/cuda_emulation/cublaslt_product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/cuda_emulation/allocations.h"

namespace cuda_emulation {

bool IsComputed64(const Desc& desc) {
  return desc.compute == CUBLAS_COMPUTE_64F || desc.compute == CUBLAS_COMPUTE_64F_PEDANTIC;
}

double ReadElement(const void* base, uint32_t type, int64_t i) {
  switch (type) {
    case CUDA_R_64F:
      return static_cast<const double*>(base)[i];
    case CUDA_R_32F:
      return static_cast<const float*>(base)[i];
    case CUDA_R_16F:
      return static_cast<const __half*>(base)[i];
    default:
      return static_cast<const __nv_bfloat16*>(base)[i];
  }
}

namespace {

size_t ElementBytes(uint32_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

void Write(void* base, uint32_t type, int64_t i, double value) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(base)[i] = value;
      break;
    case CUDA_R_32F:
      static_cast<float*>(base)[i] = static_cast<float>(value);
      break;
    case CUDA_R_16F:
      static_cast<__half*>(base)[i] = __half(value);
      break;
    default:
      static_cast<__nv_bfloat16*>(base)[i] = __nv_bfloat16(value);
      break;
  }
}

int64_t Index(const Layout& m, int64_t row, int64_t col, int64_t batch) {
  return batch * m.batch_stride + (m.order == CUBLASLT_ORDER_COL ? col * m.ld + row : row * m.ld + col);
}

// [rows, cols] of op(matrix), row-major.
template <class Acc>
std::vector<Acc> Gather(const void* base, const Layout& m, bool transposed, int64_t batch) {
  const auto rows = static_cast<int64_t>(transposed ? m.cols : m.rows);
  const auto cols = static_cast<int64_t>(transposed ? m.rows : m.cols);
  std::vector<Acc> values(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      values[static_cast<size_t>(i * cols + j)] =
          static_cast<Acc>(ReadElement(base, m.type, transposed ? Index(m, j, i, batch) : Index(m, i, j, batch)));
    }
  }
  return values;
}

template <class Acc>
void Multiply(const Product& p, Acc alpha, Acc beta) {
  const auto [m, n, k] = p.size;
  for (int64_t batch = 0; batch < p.d_layout.batch; ++batch) {
    const std::vector<Acc> a = Gather<Acc>(p.a, p.a_layout, p.desc.trans_a != CUBLAS_OP_N, batch);
    const std::vector<Acc> b = Gather<Acc>(p.b, p.b_layout, p.desc.trans_b != CUBLAS_OP_N, batch);
    std::vector<Acc> sums(static_cast<size_t>(n));
    for (int64_t i = 0; i < m; ++i) {
      std::fill(sums.begin(), sums.end(), Acc(0));
      for (int64_t x = 0; x < k; ++x) {
        const Acc value = a[static_cast<size_t>(i * k + x)];
        const Acc* row = b.data() + x * n;
        for (int64_t j = 0; j < n; ++j) sums[static_cast<size_t>(j)] += value * row[j];
      }
      for (int64_t j = 0; j < n; ++j) {
        Acc value = alpha * sums[static_cast<size_t>(j)];
        if (beta != Acc(0))
          value += beta * static_cast<Acc>(ReadElement(p.c, p.c_layout.type, Index(p.c_layout, i, j, batch)));
        if (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS) {
          value += static_cast<Acc>(ReadElement(p.desc.bias, p.d_layout.type, i));
        }
        Write(p.d, p.d_layout.type, Index(p.d_layout, i, j, batch), value);
      }
    }
  }
}

bool InDevice(const void* pointer, size_t bytes) {
  const auto found = FindAllocation(pointer);
  return found && static_cast<const char*>(pointer) + bytes <= found->begin + found->bytes;
}

bool InDevice(const void* pointer, const Layout& m) {
  const int64_t last = Index(m, static_cast<int64_t>(m.rows) - 1, static_cast<int64_t>(m.cols) - 1, m.batch - 1);
  return InDevice(pointer, static_cast<size_t>(last + 1) * ElementBytes(m.type));
}

}  // namespace

cudaError_t RunProduct(const Product& p) {
  const bool reads_c = p.device_beta != nullptr || p.beta != 0;
  if (!InDevice(p.a, p.a_layout) || !InDevice(p.b, p.b_layout) || !InDevice(p.d, p.d_layout) ||
      (reads_c && !InDevice(p.c, p.c_layout)) || (p.workspace_bytes > 0 && !InDevice(p.workspace, p.workspace_bytes)) ||
      (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS &&
       !InDevice(p.desc.bias, p.d_layout.rows * ElementBytes(p.d_layout.type)))) {
    std::fprintf(stderr, "cuda_emulation: cublasLtMatmul: an operand reaches out of its allocation\n");
    return cudaErrorIllegalAddress;
  }
  if (p.workspace_bytes > 0) std::memset(p.workspace, 0xFF, p.workspace_bytes);
  if (IsComputed64(p.desc)) {
    Multiply<double>(p, p.device_alpha ? *static_cast<const double*>(p.device_alpha) : p.alpha,
                     p.device_beta ? *static_cast<const double*>(p.device_beta) : p.beta);
  } else {
    Multiply<float>(p, p.device_alpha ? *static_cast<const float*>(p.device_alpha) : static_cast<float>(p.alpha),
                    p.device_beta ? *static_cast<const float*>(p.device_beta) : static_cast<float>(p.beta));
  }
  return cudaSuccess;
}

}  // namespace cuda_emulation
