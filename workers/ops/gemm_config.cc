#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "workers/ops/gemm.h"
#include "workers/ops/kernels/find_gemm_kernel.h"

namespace switchyard {
namespace {

// What a task's packed activations may take of a core's L2 cache, the rest being for the panels that pass by.
constexpr int64_t kActivationBytes = 768 << 10;
// A task streams at least this much of the weights: a few times ten microseconds, so that handing it out costs nothing.
constexpr int64_t kTaskBytes = 128 << 10;
// As many tasks per thread, so that the last to finish is not far behind.
constexpr int64_t kTasksPerThread = 16;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

GemmConfig ChooseGemm(const GemmShape& shape) {
  const GemmKernel& kernel = FindGemmKernel(shape.isa, shape.dtype);
  GemmConfig config{.kernel = kernel.name};
  const int64_t m = std::max<int64_t>(shape.m, 1);

  const int64_t row_bytes = std::max<int64_t>(shape.k, 1) * kernel.a_bytes;
  const int64_t blocks = CeilDiv(m, kernel.max_rows);
  const int64_t fit = std::max<int64_t>(kActivationBytes / (row_bytes * kernel.max_rows), 1);
  const int64_t row_parts = CeilDiv(blocks, fit);
  config.rows_per_task = CeilDiv(blocks, row_parts) * kernel.max_rows;
  config.why = absl::StrCat("rows: ", fit * kernel.max_rows, " of ", row_bytes, " B fit ", kActivationBytes >> 10,
                            " KB, ", row_parts, " equal parts; ");

  const int64_t unit = shape.gated ? 2 : 1;
  const int64_t units = CeilDiv(std::max<int64_t>(shape.n / unit, 1), kPanelColumns);
  const int64_t unit_bytes = unit * kPanelColumns * std::max<int64_t>(shape.k, 1) * DTypeBytes(shape.dtype);
  const int64_t least = std::min(CeilDiv(kTaskBytes, unit_bytes), units);
  const int64_t shared = CeilDiv(units * row_parts, kTasksPerThread * shape.num_threads);
  if (shape.num_threads == 1) {
    config.panels_per_task = units * unit;
    absl::StrAppend(&config.why, "panels: all, one thread");
  } else if (shared >= least) {
    config.panels_per_task = std::min(shared, units) * unit;
    absl::StrAppend(&config.why, "panels: ", kTasksPerThread, " tasks a thread (at least ", kTaskBytes >> 10,
                    " KB would allow ", least * unit, ")");
  } else {
    config.panels_per_task = least * unit;
    absl::StrAppend(&config.why, "panels: at least ", kTaskBytes >> 10, " KB (", kTasksPerThread,
                    " tasks a thread would be ", shared * unit, ")");
  }
  return config;
}

std::ostream& operator<<(std::ostream& out, const GemmShape& shape) {
  return out << DTypeName(shape.dtype) << " " << shape.m << "x" << shape.n << "x" << shape.k
             << (shape.gated ? " gated" : "") << " on " << shape.num_threads << " threads, " << IsaName(shape.isa);
}

std::ostream& operator<<(std::ostream& out, const GemmConfig& config) {
  return out << config.kernel << ", tasks of " << config.rows_per_task << " rows, " << config.panels_per_task
             << " panels (" << config.why << ")";
}

}  // namespace switchyard
