#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "workers/ops/gemm.h"
#include "workers/ops/kernels/find_gemm_kernel.h"

namespace switchyard {
namespace {

// What a task's packed activations may take of a core's L2 cache, the rest being for the panels that pass by.
constexpr int64_t kActivationBytes = 768 << 10;
// A task streams at least this much of the weights: some ten microseconds, so that handing it out costs little.
constexpr int64_t kTaskBytes = 128 << 10;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

GemmConfig ChooseGemm(const GemmShape& shape) {
  const GemmKernel& kernel = FindGemmKernel(shape.isa, shape.dtype);
  GemmConfig config{.kernel = kernel.name};
  const int64_t k = std::max<int64_t>(shape.k, 1);

  const int64_t row_bytes = k * kernel.a_bytes;
  const int64_t blocks = CeilDiv(std::max<int64_t>(shape.m, 1), kernel.max_rows);
  const int64_t fit = std::max<int64_t>(kActivationBytes / (row_bytes * kernel.max_rows), 1);
  const int64_t parts = CeilDiv(blocks, fit);
  config.rows_per_task = CeilDiv(blocks, parts) * kernel.max_rows;
  config.why = absl::StrCat(fit * kernel.max_rows, " rows of ", row_bytes, " B fit ", kActivationBytes >> 10, " KB");
  if (parts > 1) absl::StrAppend(&config.why, ", so ", parts, " equal parts instead of one of ", shape.m);

  const int64_t unit = shape.gated ? 2 : 1;
  const int64_t units = CeilDiv(std::max<int64_t>(shape.n / unit, 1), kPanelColumns);
  const int64_t unit_bytes = unit * kPanelColumns * k * DTypeBytes(shape.dtype);
  config.min_panels = unit * std::min(CeilDiv(kTaskBytes, unit_bytes), units);
  absl::StrAppend(&config.why, "; ", config.min_panels, " panels have ", config.min_panels / unit * unit_bytes >> 10,
                  " KB, ", kTaskBytes >> 10, " wanted");
  return config;
}

std::ostream& operator<<(std::ostream& out, const GemmShape& shape) {
  return out << DTypeName(shape.dtype) << " " << shape.m << "x" << shape.n << "x" << shape.k
             << (shape.gated ? " gated" : "") << " with " << IsaName(shape.isa);
}

std::ostream& operator<<(std::ostream& out, const GemmConfig& config) {
  return out << config.kernel << ", tasks of " << config.rows_per_task << " rows and " << config.min_panels
             << " panels or more (" << config.why << ")";
}

}  // namespace switchyard
