#include "workers/ops/gemm/gemm_tasks.h"

#include <algorithm>

#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/kernels/find_gemm_kernel.h"

namespace switchyard::ops {
namespace {

// Bytes of a core's L2 cache for a task's packed activations; the rest is for the panels.
constexpr int64_t kActivationBytes = 768 << 10;
// A task streams at least this much of the weights: some ten microseconds, so that handing it out costs little.
constexpr int64_t kTaskBytes = 128 << 10;
constexpr int64_t kTasksPerThread = 2;  // at least, if rows allow

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// All panels of some rows of one expert.
struct Slab {
  GemmTask task;
  int64_t min_panels;
  double cost_per_panel;
};

// What streaming a panel costs beside multiplying it with one row.
constexpr double kStreamCostInRows = 48;

// Without offsets the one weight has all rows.
int64_t FirstRow(const GemmJob& job, int64_t e) {
  if (job.offsets.empty()) return e == 0 ? 0 : job.y.dim(0);
  return job.offsets.data()[e];
}
// The rows of the expert that are the job's.
int64_t RowsOf(const GemmJob& job, int64_t e) {
  return job.weights[e] == nullptr ? 0 : FirstRow(job, e + 1) - FirstRow(job, e);
}

std::vector<Slab> Slabs(const GemmJob& job, int num_threads) {
  std::vector<Slab> slabs;
  int busy = 0;
  for (int64_t e = 0; e < job.weights.size(); ++e) busy += RowsOf(job, e) > 0 ? 1 : 0;
  for (int64_t e = 0; e < job.weights.size(); ++e) {
    const int64_t rows = RowsOf(job, e);
    if (rows == 0) continue;
    const Weight& w = *job.weights[e];
    const GemmConfig config = ChooseGemm({.m = rows,
                                          .n = w.n(),
                                          .k = w.padded_k(),
                                          .dtype = w.dtype(),
                                          .format = w.format(),
                                          .isa = job.isa,
                                          .gated = job.gated,
                                          .num_threads = static_cast<int>(CeilDiv(num_threads, busy))});
    for (int64_t r = 0; r < rows; r += config.rows_per_task) {
      const int64_t part = std::min(config.rows_per_task, rows - r);
      const int64_t begin = FirstRow(job, e) + r;
      slabs.push_back({{&w, e, begin, begin + part, 0, w.num_panels()},
                       config.min_panels,
                       static_cast<double>(w.padded_k()) * (kStreamCostInRows + static_cast<double>(part))});
    }
  }
  return slabs;
}

}  // namespace

GemmConfig ChooseGemm(const GemmShape& shape) {
  const GemmKernel& kernel = FindGemmKernel(shape.isa, shape.dtype, shape.format);
  const int64_t k = std::max<int64_t>(shape.k, 1);
  const int64_t blocks = CeilDiv(std::max<int64_t>(shape.m, 1), kernel.max_rows);
  const int64_t blocks_that_fit = std::max<int64_t>(kActivationBytes / (kernel.ARowBytes(k) * kernel.max_rows), 1);

  const int64_t unit = shape.gated ? 2 : 1;
  const int64_t units = CeilDiv(std::max<int64_t>(shape.n / unit, 1), kPanelColumns);
  const int64_t unit_bytes =
      unit * PackedBytes({.n = kPanelColumns, .k = k, .dtype = shape.dtype, .format = shape.format});
  const int64_t min_units = std::min(CeilDiv(kTaskBytes, unit_bytes), units);

  // A matrix with few columns (a router) has too few panels to go round: more parts of rows, then.
  const int64_t panel_parts = CeilDiv(units, min_units);
  const int64_t parts_for_threads =
      shape.num_threads == 1 ? 1 : CeilDiv(kTasksPerThread * shape.num_threads, panel_parts);
  const int64_t row_parts = std::max(CeilDiv(blocks, blocks_that_fit), std::min(parts_for_threads, blocks));
  return {.rows_per_task = CeilDiv(blocks, row_parts) * kernel.max_rows, .min_panels = unit * min_units};
}

std::vector<GemmTask> CutIntoTasks(const GemmJob& job, int num_threads) {
  const std::vector<Slab> slabs = Slabs(job, num_threads);
  const int64_t unit = job.gated ? 2 : 1;
  double remaining = 0;
  for (const Slab& slab : slabs) remaining += slab.cost_per_panel * static_cast<double>(slab.task.panel_end);
  std::vector<GemmTask> tasks;
  for (const Slab& slab : slabs) {
    for (int64_t p = 0; p < slab.task.panel_end;) {
      // Half of a thread's share of what is left.
      const double share = num_threads == 1 ? remaining : remaining / (2.0 * num_threads);
      const int64_t wanted = static_cast<int64_t>(share / slab.cost_per_panel) / unit * unit;
      const int64_t panels = std::min(std::max(wanted, slab.min_panels), slab.task.panel_end - p);
      tasks.push_back(slab.task);
      tasks.back().panel_begin = p;
      tasks.back().panel_end = p + panels;
      remaining -= slab.cost_per_panel * static_cast<double>(panels);
      p += panels;
    }
  }
  return tasks;
}

}  // namespace switchyard::ops
