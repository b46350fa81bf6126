// dw = dyᵀ · x by the inner kernels of the matrix products: columns of dy as A blocks, columns of x as panels, both
// packed by the task that needs them.  A task computes some rows of dw; their A blocks stay in the L2 cache while panel
// after panel is packed into the L1 cache and used at once.
#include <algorithm>
#include <vector>

#include "workers/ops/core/op_checks.h"
#include "workers/ops/core/thread_scratch.h"
#include "workers/ops/gemm/backward/weight_gradient.h"
#include "workers/ops/gemm/backward/weight_gradient_job.h"
#include "workers/ops/gemm/kernels/find_gemm_kernel.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kBlockBytes = 512 << 10;  // for a task's A blocks
constexpr int64_t kTasksPerThread = 6;      // about: small enough to end together
constexpr int64_t kMinPanels = 4;           // for which packing a task's A blocks pays
constexpr int64_t kDepthMultiple = 32;      // a tile's depth; also keeps blocks and panels at whole cache lines

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Task {
  int64_t group;
  int64_t row_begin, row_end;      // of dw: columns of dy
  int64_t panel_begin, panel_end;  // of x
};

struct Context {
  const WeightGradientJob* job;
  const GemmKernel* kernel;
  int64_t rows_per_task;  // of dw
  const ThreadPool* pool;
};

int64_t RowsOf(const WeightGradientJob& job, int64_t group) {
  return job.offsets.data()[group + 1] - job.offsets.data()[group];
}

// Equal parts of dw's rows, each of whole blocks that fit together.
int64_t RowsPerTask(const GemmKernel& kernel, int64_t n) {
  const int64_t block_bytes = kWeightGradientRows * kernel.max_rows * kernel.a_bytes;
  const int64_t blocks = CeilDiv(n, kernel.max_rows), fit = std::max<int64_t>(kBlockBytes / block_bytes, 1);
  return CeilDiv(blocks, CeilDiv(blocks, fit)) * kernel.max_rows;
}

// Changes speed, never bits.
std::vector<Task> CutIntoTasks(const Context& context, int num_threads) {
  const WeightGradientJob& job = *context.job;
  const int64_t n = job.dy.dim(1), panels = CeilDiv(job.x.dim(1), kPanelColumns);
  const int64_t groups = static_cast<int64_t>(job.gradients.size());
  const int64_t share = CeilDiv(job.dy.dim(0) * n * panels, num_threads == 1 ? 1 : kTasksPerThread * num_threads);
  std::vector<Task> tasks;
  for (int64_t e = 0; e < groups; ++e) {
    if (RowsOf(job, e) == 0 || job.gradients[e].raw() == nullptr) continue;
    for (int64_t row = 0; row < n; row += context.rows_per_task) {
      const int64_t row_end = std::min(row + context.rows_per_task, n);
      const int64_t wanted = std::max(share / (RowsOf(job, e) * (row_end - row)), kMinPanels);
      for (int64_t p = 0; p < panels; p += wanted) tasks.push_back({e, row, row_end, p, std::min(p + wanted, panels)});
    }
  }
  return tasks;
}

// Rows [begin, begin + k) of dy and x, a run of one group's.
struct Depth {
  int64_t begin, k, padded_k;
};

void PackBlocks(const Context& context, const Task& task, const Depth& depth, char* a) {
  const TensorView& dy = context.job->dy;
  const GemmKernel& kernel = *context.kernel;
  for (int64_t row = task.row_begin; row < task.row_end; row += kernel.max_rows) {
    kernel.pack_columns({.x = ElementAt(dy, depth.begin, row),
                         .x_stride = dy.row_stride(),
                         .columns = std::min<int64_t>(kernel.max_rows, task.row_end - row),
                         .k = depth.k,
                         .padded_k = depth.padded_k,
                         .a = a + (row - task.row_begin) * depth.padded_k * kernel.a_bytes});
  }
}

void PackPanel(const Context& context, int64_t column, const Depth& depth, void* panel) {
  const WeightGradientJob& job = *context.job;
  const bool gather = !job.x_rows.empty();
  const TensorView x = gather ? job.x : job.x.Rows(depth.begin, 1);
  context.kernel->pack_panel({.x_dtype = DTypeCode(x.dtype()),
                              .dtype = DTypeCode(x.dtype()),
                              .x = x.Columns(column, 1).raw(),
                              .x_stride = x.row_stride(),
                              .row_idx = gather ? job.x_rows.data() + depth.begin : nullptr,
                              .columns = std::min(kPanelColumns, x.dim(1) - column),
                              .k = depth.k,
                              .padded_k = depth.padded_k,
                              .panel = panel});
}

// All blocks with one panel, added to the gradient.
void AddPanel(const Context& context, const Task& task, int64_t column, int64_t padded_k, const char* a,
              const char* panel) {
  const GemmKernel& kernel = *context.kernel;
  const TensorView& gradient = context.job->gradients[task.group];
  alignas(64) double c[kGemmMaxRows * kGemmPanel];
  for (int64_t row = task.row_begin; row < task.row_end; row += kernel.max_rows) {
    const int64_t rows = std::min<int64_t>(kernel.max_rows, task.row_end - row);
    kernel.block({.a = a + (row - task.row_begin) * padded_k * kernel.a_bytes,
                  .rows = rows,
                  .b = panel,
                  .padded_k = padded_k,
                  .c = c});
    kernel.epilogue({.dtype = DTypeCode(context.job->dy.dtype()),
                     .y_dtype = DTypeCode(gradient.dtype()),
                     .accumulate = true,
                     .c = c,
                     .rows = rows,
                     .columns = std::min(kPanelColumns, gradient.dim(1) - column),
                     .y = ElementAt(gradient, row, column),
                     .y_stride = gradient.row_stride()});
  }
}

void RunTask(const Context& context, const Task& task) {
  const WeightGradientJob& job = *context.job;
  const int64_t panel_bytes = kWeightGradientRows * kPanelColumns * DTypeBytes(job.x.dtype());
  const int64_t block_bytes = context.rows_per_task * kWeightGradientRows * context.kernel->a_bytes;
  char* const a = static_cast<char*>(ThreadScratch(ScratchUse::kTask, block_bytes + panel_bytes));
  char* const panel = a + block_bytes;
  const int64_t end = job.offsets.data()[task.group + 1];
  for (int64_t begin = job.offsets.data()[task.group]; begin < end; begin += kWeightGradientRows) {
    const int64_t k = std::min(kWeightGradientRows, end - begin);
    const Depth depth = {begin, k, CeilDiv(k, kDepthMultiple) * kDepthMultiple};
    PackBlocks(context, task, depth, a);
    for (int64_t p = task.panel_begin; p < task.panel_end; ++p) {
      context.pool->Yield();
      PackPanel(context, p * kPanelColumns, depth, panel);
      AddPanel(context, task, p * kPanelColumns, depth.padded_k, a, panel);
    }
  }
}

}  // namespace

void RunWeightGradientOnCpu(const Stream& stream, const WeightGradientJob& job) {
  if (job.dy.dim(1) == 0 || job.x.dim(1) == 0) return;
  const GemmKernel& kernel = FindGemmKernel(job.isa, job.dy.dtype());
  const Context context = {&job, &kernel, RowsPerTask(kernel, job.dy.dim(1)), &stream.pool()};
  const std::vector<Task> tasks = CutIntoTasks(context, stream.pool().num_threads());
  stream.pool().Run(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    RunTask(context, tasks[i]);
    if (kernel.end != nullptr) kernel.end();
  });
}

}  // namespace switchyard::ops
