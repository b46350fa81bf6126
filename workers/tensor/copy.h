// Copies between the host and devices.
//
// CopyTensor takes its place in the stream's order; host memory on either side of a device must be pinned and stay
// until then.  CopyToDevice and CopyToHost block and take any memory; they allocate pinned memory for it, which is
// slow: what comes back in every step comes through a HostCopy.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

// to = from.  Errors (InvalidArgument): other shapes or dtypes; rows with a stride, unless both are on the CPU.
absl::Status CopyTensor(const Stream& stream, const TensorView& from, const TensorView& to);
// to = from in to's dtype, rounded to nearest even; rows may be strided.  On the stream's threads.  Errors:
// InvalidArgument (other shapes, dtypes that are not floating), Unimplemented (not on the CPU).
absl::Status RoundRows(const Stream& stream, const TensorView& from, const TensorView& to);
// All of it becomes zeros, in the stream's order.  REQUIRES: contiguous.
absl::Status FillZero(const Stream& stream, const TensorView& view);
// All of the stream's work is done, or the deadline has come.  At once on the CPU.
absl::Status Synchronize(const Stream& stream, absl::Time deadline = absl::InfiniteFuture());

// A copy on another device, when it is there.
absl::StatusOr<Tensor> CopyToDevice(const Stream& stream, const TensorView& from);
// A copy on the host, of what the stream's work so far leaves there.
absl::StatusOr<Tensor> CopyToHost(const Stream& stream, const TensorView& from);

// A place on the host for what comes from a device: pinned memory, which grows and is kept.  Thread-compatible.
class HostCopy {
 public:
  // `from` as the stream's work so far leaves it, where the host can read it: valid until the next call.  Blocks, at
  // most until the deadline.  On the CPU it is `from` itself. Errors: InvalidArgument (rows with a stride),
  // ResourceExhausted (no pinned memory), DeadlineExceeded, the device's.
  absl::StatusOr<TensorView> Take(const Stream& stream, const TensorView& from, absl::Time deadline);

 private:
  PinnedBuffer pinned_;
};

}  // namespace switchyard
