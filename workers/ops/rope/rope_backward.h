// The way back through ApplyRope (rope.h): every pair is turned by the negative angle, with the same attention factor,
// in place.  Errors (InvalidArgument): as ApplyRope's.  CPU only so far.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/ops/rope/rope.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

absl::Status ApplyRopeBackward(const Stream& stream, const RopeTable& table, int64_t head_dim,
                               const IntView& table_rows,  // [T] of RowOf
                               const TensorView& dx);      // [T, N*D] (or Nkv*D) model dtype; rows may be strided

}  // namespace switchyard::ops
