// The checks that every op.cc makes of its arguments, with messages that name op, argument, expected and found; and
// functions that convert arguments for kernels and run a kernel on the CPU.
//
// Internal to workers/ops.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "workers/ops/core/kernels.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

// The op that checks, and the device that all of its arguments must be on.
struct OpSite {
  absl::string_view op;
  Device device;
};

// InvalidArgument unless there are kernels for the device.
absl::Status ExpectKernels(const OpSite& at);
// Unimplemented on a device: for ops that only the CPU has so far.
absl::Status ExpectHost(const OpSite& at);
// InvalidArgument("rms_norm: gamma must be bf16 [64] cpu, is fp32 [64] cpu") unless dtype, shape and device are these.
absl::Status ExpectView(const OpSite& at, absl::string_view name, const TensorView& view, DType dtype,
                        const Shape& shape);
// InvalidArgument unless the view is a matrix of a floating dtype.
absl::Status ExpectFloatMatrix(const OpSite& at, absl::string_view name, const TensorView& view);
// InvalidArgument unless there are `count` numbers, all in [low, high) where the host can see them.  On other devices
// they were checked before they were copied there.
absl::Status ExpectInts(const OpSite& at, absl::string_view name, const IntView& ints, int64_t count, int64_t low,
                        int64_t high);

// InvalidArgument unless offsets [count + 1], on the host, rise from 0 to the number of rows of `name`.
absl::Status ExpectOffsets(const OpSite& at, const int32_t* offsets, int64_t count, absl::string_view name,
                           int64_t rows);

inline uint8_t DTypeCode(DType dtype) { return static_cast<uint8_t>(dtype); }

// Rows per task so that a task moves about 64 KB: small enough to balance threads, large enough to pay for itself.
inline int64_t RowGrain(int64_t row_bytes) { return row_bytes > 0 ? 1 + (64 << 10) / row_bytes : 1 << 20; }

inline void* ElementAt(const TensorView& matrix, int64_t row, int64_t column) {
  return matrix.Rows(row, 1).Columns(column, 1).raw();
}

inline KernelRows RowsOf(const TensorView& view) { return {view.raw(), view.row_stride()}; }
// REQUIRES: the view has this dtype or its AccDType.
inline MixedRows MixedRowsOf(const TensorView& view, DType dtype) {
  return {view.raw(), view.row_stride(), view.dtype() != dtype};
}

// Runs a kernel over rows [0, rows) on the stream's threads; each row moves row_bytes.
template <class Args>
absl::Status RunOnCpu(const Stream& stream, int64_t rows, int64_t row_bytes, RowKernel<Args> kernel, const Args& args) {
  stream.pool().ParallelFor(rows, RowGrain(row_bytes), [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
