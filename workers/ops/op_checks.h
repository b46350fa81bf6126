// What every op.cc checks about its arguments, with messages that name op, argument, expected and found.
//
// Internal to workers/ops.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

// InvalidArgument("rms_norm: gamma must be bf16 [64], is fp32 [64]") unless dtype and shape are these and the view is
// on the CPU.
absl::Status ExpectView(absl::string_view op, absl::string_view name, const TensorView& view, DType dtype,
                        const Shape& shape);
// InvalidArgument unless the view is a matrix of a floating dtype on the CPU.
absl::Status ExpectFloatMatrix(absl::string_view op, absl::string_view name, const TensorView& view);
// InvalidArgument unless the stream is the CPU's.
absl::Status ExpectCpu(absl::string_view op, const Stream& stream);

inline uint8_t DTypeCode(DType dtype) { return static_cast<uint8_t>(dtype); }

// Rows per task so that a task moves about 64 KB: small enough to share out, large enough to be worth it.
inline int64_t RowGrain(int64_t row_bytes) { return row_bytes > 0 ? 1 + (64 << 10) / row_bytes : 1 << 20; }

}  // namespace switchyard
