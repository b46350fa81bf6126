// Copies between the host and devices.
//
// CopyTensor takes its place in the stream's order; host memory on either side of a device must be pinned and stay
// until then.  The other two block and take any memory.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

// to = from.  Errors (InvalidArgument): other shapes or dtypes; rows with a stride, unless both are on the CPU.
absl::Status CopyTensor(const Stream& stream, const TensorView& from, const TensorView& to);
// All of it becomes zeros, in the stream's order.  REQUIRES: contiguous.
absl::Status FillZero(const Stream& stream, const TensorView& view);
// All of the stream's work is done, or the deadline has come.  At once on the CPU.
absl::Status Synchronize(const Stream& stream, absl::Time deadline = absl::InfiniteFuture());

// A copy on another device, when it is there.
absl::StatusOr<Tensor> CopyToDevice(const Stream& stream, const TensorView& from);
// A copy on the host, of what the stream's work so far leaves there.
absl::StatusOr<Tensor> CopyToHost(const Stream& stream, const TensorView& from);

}  // namespace switchyard
