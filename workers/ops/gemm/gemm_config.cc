#include <algorithm>
#include <ostream>

#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/kernels/find_gemm_kernel.h"

namespace switchyard::ops {
namespace {

// What a task's packed activations may take of a core's L2 cache, the rest being for the panels that pass by.
constexpr int64_t kActivationBytes = 768 << 10;
// A task streams at least this much of the weights: some ten microseconds, so that handing it out costs little.
constexpr int64_t kTaskBytes = 128 << 10;
constexpr int64_t kTasksPerThread = 2;  // at least, if rows allow

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

GemmConfig ChooseGemm(const GemmShape& shape) {
  const GemmKernel& kernel = FindGemmKernel(shape.isa, shape.dtype);
  GemmConfig config{.kernel = kernel.name};
  const int64_t k = std::max<int64_t>(shape.k, 1);

  config.row_bytes = k * kernel.a_bytes;
  const int64_t blocks = CeilDiv(std::max<int64_t>(shape.m, 1), kernel.max_rows);
  const int64_t blocks_that_fit = std::max<int64_t>(kActivationBytes / (config.row_bytes * kernel.max_rows), 1);
  config.rows_that_fit = blocks_that_fit * kernel.max_rows;
  config.row_parts_for_cache = CeilDiv(blocks, blocks_that_fit);

  const int64_t unit = shape.gated ? 2 : 1;
  const int64_t units = CeilDiv(std::max<int64_t>(shape.n / unit, 1), kPanelColumns);
  config.panel_bytes = unit * kPanelColumns * k * DTypeBytes(shape.dtype);
  const int64_t min_units = std::min(CeilDiv(kTaskBytes, config.panel_bytes), units);
  config.min_panels = unit * min_units;

  // A matrix with few columns (a router) has too few panels to go round: more parts of rows, then.
  const int64_t panel_parts = CeilDiv(units, min_units);
  const int64_t parts_for_threads =
      shape.num_threads == 1 ? 1 : CeilDiv(kTasksPerThread * shape.num_threads, panel_parts);
  config.row_parts = std::max(config.row_parts_for_cache, std::min(parts_for_threads, blocks));
  config.rows_per_task = CeilDiv(blocks, config.row_parts) * kernel.max_rows;
  return config;
}

std::ostream& operator<<(std::ostream& out, const GemmShape& shape) {
  return out << DTypeName(shape.dtype) << " " << shape.m << "x" << shape.n << "x" << shape.k
             << (shape.gated ? " gated" : "") << " with " << IsaName(shape.isa) << " on " << shape.num_threads
             << " threads";
}

std::ostream& operator<<(std::ostream& out, const GemmConfig& config) {
  out << config.kernel << ", tasks of " << config.rows_per_task << " rows (" << config.rows_that_fit << " rows of "
      << config.row_bytes << " B fit " << (kActivationBytes >> 10) << " KB";
  if (config.row_parts_for_cache > 1) out << ": one part would not, " << config.row_parts_for_cache << " equal ones do";
  if (config.row_parts > config.row_parts_for_cache) out << "; " << config.row_parts << " so that each thread has some";
  return out << ") and " << config.min_panels << " panels or more (of " << config.panel_bytes << " B; fewer than "
             << (kTaskBytes >> 10) << " KB a task would cost more than they balance)";
}

}  // namespace switchyard::ops
