// Copies between the host and devices.
//
// CopyTensor runs in the stream's order; host memory on either side must be pinned and stay until then.  CopyToDevice
// and CopyToHost block and accept any memory, but allocate pinned memory, which is slow: steps use a HostCopy.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

// to = from.  Errors (InvalidArgument): other shapes or dtypes; rows with a stride, unless both are on the CPU.
absl::Status CopyTensor(const Stream& stream, const TensorView& from, const TensorView& to);
// to = from in to's dtype, rounded to nearest even; rows may be strided.  Runs on the stream's threads.
// Errors: InvalidArgument (other shapes, dtypes that are not floating), Unimplemented (not on the CPU).
absl::Status RoundRows(const Stream& stream, const TensorView& from, const TensorView& to);
// Fills the view with zeros, in the stream's order.  REQUIRES: contiguous.
absl::Status FillZero(const Stream& stream, const TensorView& view);
// Waits until all of the stream's work is done, or until the deadline.  Returns at once on the CPU.
absl::Status Synchronize(const Stream& stream, absl::Time deadline = absl::InfiniteFuture());

// Returns a copy on the stream's device, once it is there.
absl::StatusOr<Tensor> CopyToDevice(const Stream& stream, const TensorView& from);
// Returns a copy on the host, of the contents after the stream's work so far.
absl::StatusOr<Tensor> CopyToHost(const Stream& stream, const TensorView& from);

// A copy on the host in pinned memory, which grows and is used again.  Thread-compatible.
class HostCopy {
 public:
  // Returns a copy of `from` after the stream's work so far, which the host can read until the next call; on the CPU
  // `from` itself.  Blocks, at most until the deadline.
  // Errors: InvalidArgument (rows with a stride), ResourceExhausted (no pinned memory), DeadlineExceeded, the device's.
  absl::StatusOr<TensorView> Take(const Stream& stream, const TensorView& from, absl::Time deadline);

 private:
  PinnedBuffer pinned_;
};

}  // namespace switchyard
