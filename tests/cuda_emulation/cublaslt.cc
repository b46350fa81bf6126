// cuBLASLt's calls, with their checks and refusals.
#include <cublasLt.h>

#include <algorithm>
#include <cstring>

#include "tests/cuda_emulation/cublaslt_product.h"
#include "tests/cuda_emulation/errors.h"
#include "tests/cuda_emulation/stream_queue.h"

struct cublasLtContext {};

struct cublasLtMatmulPreferenceOpaque_t {
  uint32_t search = 0, reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint64_t max_workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
  float max_waves = 0;
};

namespace cuda_emulation {
namespace {

constexpr uint64_t kAlgoMark = 0x656D756C61746564;
constexpr uint64_t kSplitWorkspace = 1 << 20;

// What cublasLtMatmulAlgo_t holds.
struct Algo {
  uint64_t mark, workspace;
  uint32_t alignment[4];
};
static_assert(sizeof(Algo) <= sizeof(cublasLtMatmulAlgo_t));

template <class Value>
cublasStatus_t Set(Value* member, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(Value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(member, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// The combinations of types in cuBLAS's documentation, as far as this has the types.
bool TypesSupported(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  if (a.type != b.type || c.type != d.type) return false;
  if (IsComputed64(desc)) return desc.scale == CUDA_R_64F && a.type == CUDA_R_64F && d.type == CUDA_R_64F;
  if (desc.scale != CUDA_R_32F) return false;
  if (desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32) return a.type == CUDA_R_32F && d.type == CUDA_R_32F;
  if (desc.compute != CUBLAS_COMPUTE_32F && desc.compute != CUBLAS_COMPUTE_32F_PEDANTIC) return false;
  if (a.type == CUDA_R_32F) return d.type == CUDA_R_32F;
  return (a.type == CUDA_R_16BF || a.type == CUDA_R_16F) && (d.type == a.type || d.type == CUDA_R_32F);
}

bool EpilogueSupported(const Desc& desc, const Layout& d) {
  if (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
  if (desc.epilogue != CUBLASLT_EPILOGUE_BIAS || IsComputed64(desc)) return false;
  return desc.bias_type == -1 || static_cast<uint32_t>(desc.bias_type) == d.type;
}

cublasStatus_t CheckLayout(const Layout& m) {
  const uint64_t least = m.order == CUBLASLT_ORDER_COL ? m.rows : m.cols;
  if (m.rows == 0 || m.cols == 0 || m.ld < static_cast<int64_t>(least)) return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Check(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d, Sizes* s) {
  for (const Layout* layout : {&a, &b, &c, &d}) {
    if (CheckLayout(*layout) != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_INVALID_VALUE;
    if (layout->batch != d.batch) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool ta = desc.trans_a != CUBLAS_OP_N, tb = desc.trans_b != CUBLAS_OP_N;
  *s = {static_cast<int64_t>(d.rows), static_cast<int64_t>(d.cols), static_cast<int64_t>(ta ? a.rows : a.cols)};
  const bool fits = (ta ? a.cols : a.rows) == d.rows && (tb ? b.rows : b.cols) == d.cols &&
                    (tb ? b.cols : b.rows) == static_cast<uint64_t>(s->k) && c.rows == d.rows && c.cols == d.cols;
  if (!fits) return CUBLAS_STATUS_INVALID_VALUE;
  if (!TypesSupported(desc, a, b, c, d) || !EpilogueSupported(desc, d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

bool IsAligned(const void* pointer, uint32_t to) { return reinterpret_cast<uintptr_t>(pointer) % to == 0; }

// The pointers must have the alignment given to the heuristic, the workspace the size that it asked for and 256 bytes'.
cublasStatus_t CheckAlgo(const Product& p, const cublasLtMatmulAlgo_t* algo, size_t workspace_bytes) {
  Algo chosen{};
  if (algo == nullptr) return CUBLAS_STATUS_SUCCESS;
  std::memcpy(&chosen, algo, sizeof chosen);
  if (chosen.mark != kAlgoMark) return CUBLAS_STATUS_INVALID_VALUE;
  if (chosen.workspace > workspace_bytes || (chosen.workspace > 0 && !IsAligned(p.workspace, 256))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const void* operands[4] = {p.a, p.b, p.beta == 0 && p.device_beta == nullptr ? nullptr : p.c, p.d};
  for (int i = 0; i < 4; ++i) {
    if (!IsAligned(operands[i], chosen.alignment[i])) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

void FillResult(uint64_t workspace, const uint32_t (&alignment)[4], cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  Algo algo{kAlgoMark, workspace, {}};
  std::copy_n(alignment, 4, algo.alignment);
  std::memcpy(&result->algo, &algo, sizeof algo);
  result->workspaceSize = workspace;
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1.f;
}

const char* StatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "unknown cuBLAS status";
}

// An injected error of the CUDA runtime fails the call of cuBLASLt, too.
cublasStatus_t EnterLt(const char* name, const void* object) {
  if (InjectedError(name) != cudaSuccess) return CUBLAS_STATUS_INTERNAL_ERROR;
  return object == nullptr ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace cuda_emulation

using namespace cuda_emulation;  // NOLINT: the API's functions are global

const char* cublasGetStatusName(cublasStatus_t status) { return StatusName(status); }
const char* cublasGetStatusString(cublasStatus_t status) { return StatusName(status); }
const char* cublasLtGetStatusName(cublasStatus_t status) { return StatusName(status); }
const char* cublasLtGetStatusString(cublasStatus_t status) { return StatusName(status); }
size_t cublasLtGetVersion() { return 130100; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (const auto status = EnterLt("cublasLtCreate", handle); status != CUBLAS_STATUS_SUCCESS) return status;
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  if (const auto status = EnterLt("cublasLtMatmulDescCreate", desc); status != CUBLAS_STATUS_SUCCESS) return status;
  *desc = new Desc{compute, scale};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  if (desc == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return Set(&desc->compute, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return Set(&desc->scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return Set(&desc->pointer_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Set(&desc->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Set(&desc->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Set(&desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Set(&desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return Set(&desc->sm_count, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Set(&desc->bias_type, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  if (const auto status = EnterLt("cublasLtMatrixLayoutCreate", layout); status != CUBLAS_STATUS_SUCCESS) return status;
  *layout = new Layout{static_cast<uint32_t>(type), CUBLASLT_ORDER_COL, rows, cols, ld};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  if (layout == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return Set(&layout->type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return Set(&layout->order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return Set(&layout->rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return Set(&layout->cols, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return Set(&layout->ld, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return Set(&layout->batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return Set(&layout->batch_stride, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  if (const auto status = EnterLt("cublasLtMatmulPreferenceCreate", preference); status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
      return Set(&preference->search, value, bytes);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Set(&preference->max_workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Set(&preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Set(&preference->alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Set(&preference->alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Set(&preference->alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Set(&preference->alignment[3], value, bytes);
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT:
      return Set(&preference->max_waves, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int num_wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* num_found) {
  if (const auto s = EnterLt("cublasLtMatmulAlgoGetHeuristic", handle); s != CUBLAS_STATUS_SUCCESS) return s;
  if (!desc || !a || !b || !c || !d || !preference || !results || !num_found || num_wanted < 1) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *num_found = 0;
  Sizes size{};
  if (const auto s = Check(*desc, *a, *b, *c, *d, &size); s != CUBLAS_STATUS_SUCCESS) return s;
  // The library need not name an algorithm for a bias whose address it cannot see.
  if (desc->epilogue == CUBLASLT_EPILOGUE_BIAS && desc->bias == nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;
  // One that splits k, if it may and has room; and one that needs nothing.
  if (preference->max_workspace >= kSplitWorkspace && preference->reductions != CUBLASLT_REDUCTION_SCHEME_NONE) {
    FillResult(kSplitWorkspace, preference->alignment, &results[(*num_found)++]);
  }
  if (*num_found < num_wanted) FillResult(0, preference->alignment, &results[(*num_found)++]);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (const auto s = EnterLt("cublasLtMatmul", handle); s != CUBLAS_STATUS_SUCCESS) return s;
  if (!desc || !alpha || !beta || !a || !b || !d || !a_layout || !b_layout || !c_layout || !d_layout) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  Sizes size{};
  if (const auto s = Check(*desc, *a_layout, *b_layout, *c_layout, *d_layout, &size); s != CUBLAS_STATUS_SUCCESS) {
    return s;
  }
  Product p{*desc, *a_layout, *b_layout, *c_layout, *d_layout,
            a,     b,         c,         d,         0,
            0,     nullptr,   nullptr,   workspace, workspace == nullptr ? 0 : workspace_bytes,
            size};
  if (desc->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
    p.device_alpha = alpha;
    p.device_beta = beta;
  } else {
    p.alpha = ReadElement(alpha, desc->scale, 0);
    p.beta = ReadElement(beta, desc->scale, 0);
  }
  if (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS && p.desc.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (const auto s = CheckAlgo(p, algo, p.workspace_bytes); s != CUBLAS_STATUS_SUCCESS) return s;
  return Enqueue(stream, "cublasLtMatmul", [p] { return RunProduct(p); }) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}
