// A job's tasks (gemm_tasks.h) on the pool's threads.  A task's rows are packed into the thread's scratch once, also if
// its next task has the same rows; then panel after panel passes over all of them.
#include <algorithm>
#include <atomic>
#include <vector>

#include "workers/ops/core/op_checks.h"
#include "workers/ops/gemm/gemm_job.h"
#include "workers/ops/gemm/gemm_tasks.h"
#include "workers/ops/gemm/kernels/find_gemm_kernel.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

// A thread's packed rows: those of [row_begin, …) of one job.
struct PackedRows {
  Buffer buffer;
  uint64_t job = 0;  // 0 = none
  int64_t row_begin = 0;
};
thread_local PackedRows packed_rows;
std::atomic<uint64_t> jobs_begun{0};

struct JobContext {
  const GemmJob* job;
  const GemmKernel* kernel;
  uint64_t id;
  const ThreadPool* pool;
};

// The task's rows as consecutive A blocks.
const char* PackTaskRows(const JobContext& context, const GemmTask& task) {
  const GemmJob& job = *context.job;
  const GemmKernel& kernel = *context.kernel;
  PackedRows& packed = packed_rows;
  if (packed.job == context.id && packed.row_begin == task.row_begin)
    return static_cast<const char*>(packed.buffer.data());
  const int64_t row_bytes = kernel.ARowBytes(task.weight->padded_k());
  const int64_t bytes = (task.row_end - task.row_begin) * row_bytes;
  if (packed.buffer.bytes() < bytes) packed.buffer = Buffer(bytes, Device::Cpu());
  char* a = static_cast<char*>(packed.buffer.data());
  for (int64_t row = task.row_begin; row < task.row_end; row += kernel.max_rows) {
    const bool gather = !job.x_rows.empty();
    const TensorView x = gather ? job.x : job.x.Rows(row, 1);
    kernel.pack({.x = x.raw(),
                 .x_stride = job.x.row_stride(),
                 .row_idx = gather ? job.x_rows.data() + row : nullptr,
                 .rows = std::min<int64_t>(kernel.max_rows, task.row_end - row),
                 .k = task.weight->k(),
                 .padded_k = task.weight->padded_k(),
                 .a = a + (row - task.row_begin) * row_bytes});
  }
  packed.job = context.id;
  packed.row_begin = task.row_begin;
  return a;
}

// A part of y.
struct Block {
  int64_t row, rows, column;
  const char* bias;  // of the group or its weight, or null
};

// Sums to y: one panel's columns, or those of a gate panel and its up panel, of some rows.
void WriteBlock(const JobContext& context, const void* c, const Block& block) {
  const GemmJob& job = *context.job;
  const auto [row, rows, column, bias] = block;
  const int64_t element = DTypeBytes(job.x.dtype());
  const char* const up_bias = job.gated && bias != nullptr ? bias + (job.y.dim(1) + column) * element : nullptr;
  context.kernel->epilogue({.dtype = DTypeCode(job.x.dtype()),
                            .y_dtype = DTypeCode(job.y.dtype()),
                            .accumulate = job.accumulate,
                            .gated = job.gated,
                            .c = c,
                            .rows = rows,
                            .columns = std::min(kPanelColumns, job.y.dim(1) - column),
                            .bias = bias == nullptr ? nullptr : bias + column * element,
                            .up_bias = up_bias,
                            .alpha = job.clamp.alpha,
                            .limit = job.clamp.limit,
                            .y = ElementAt(job.y, row, column),
                            .y_stride = job.y.row_stride()});
}

// Sums before the activation: the gate's panel, then up's behind all of the gate's columns.
void WriteSums(const JobContext& context, const char* c, int64_t row, int64_t rows, int64_t column) {
  const GemmJob& job = *context.job;
  const int64_t width = job.y.dim(1);
  for (int64_t part = 0; part < 2; ++part) {
    context.kernel->epilogue({.dtype = DTypeCode(job.x.dtype()),
                              .y_dtype = DTypeCode(job.sums.dtype()),
                              .c = c + part * rows * kGemmPanel * DTypeBytes(AccDType(job.x.dtype())),
                              .rows = rows,
                              .columns = std::min(kPanelColumns, width - column),
                              .y = ElementAt(job.sums, row, part * width + column),
                              .y_stride = job.sums.row_stride()});
  }
}

void RunTask(const JobContext& context, const GemmTask& task) {
  const GemmKernel& kernel = *context.kernel;
  const Weight& w = *task.weight;
  const char* a = PackTaskRows(context, task);
  const char* panels = static_cast<const char*>(w.data());
  const int64_t panel_bytes = w.panel_bytes();
  const int64_t row_bytes = kernel.ARowBytes(w.padded_k());
  const absl::Span<const TensorView> biases = context.job->biases;
  const TensorView own_bias = w.bias();
  const char* bias = static_cast<const char*>(own_bias.raw());
  if (!biases.empty() && !w.desc().bias) bias = static_cast<const char*>(biases[task.weight_idx].raw());
  const int64_t parts = context.job->gated ? 2 : 1;
  const int64_t num_blocks = (task.row_end - task.row_begin + kernel.max_rows - 1) / kernel.max_rows;
  alignas(64) double c[kGemmMaxPanels * kGemmMaxRows * kGemmPanel];

  for (int64_t p = task.panel_begin; p < task.panel_end; p += parts) {
    context.pool->Yield();
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int64_t row = task.row_begin + block * kernel.max_rows;
      const int64_t rows = std::min<int64_t>(kernel.max_rows, task.row_end - row);
      for (int64_t part = 0; part < parts; ++part) {
        kernel.block({.a = a + block * kernel.max_rows * row_bytes,
                      .rows = rows,
                      .b = panels + (p + part) * panel_bytes,
                      .padded_k = w.padded_k(),
                      .c = reinterpret_cast<char*>(c) + part * rows * kGemmPanel * DTypeBytes(AccDType(w.dtype())),
                      .from_memory = block == 0});
      }
      const int64_t column = p / parts * kPanelColumns;
      WriteBlock(context, c, {row, rows, column, bias});
      if (context.job->sums.raw() != nullptr) {
        WriteSums(context, reinterpret_cast<const char*>(c), row, rows, column);
      }
    }
  }
}

}  // namespace

void RunGemmJobOnCpu(const Stream& stream, const GemmJob& job) {
  const std::vector<GemmTask> tasks = CutIntoTasks(job, stream.pool().num_threads());
  const GemmKernel& kernel = FindGemmKernel(job.isa, job.x.dtype(), FormatOf(job));
  const JobContext context = {&job, &kernel, jobs_begun.fetch_add(1) + 1, &stream.pool()};
  stream.pool().Run(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    RunTask(context, tasks[i]);
    if (context.kernel->end != nullptr) context.kernel->end();
  });
}

}  // namespace switchyard::ops
