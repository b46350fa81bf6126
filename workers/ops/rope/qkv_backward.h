// The backward pass of PrepareQkv (qkv.h): from the gradient of the prepared rows to that of the projected rows and of
// the norms' weights.  Rotation, clip and norms are undone in reverse order; an element that the clip cut has no
// gradient (one at the limit itself has).
//
// The norms are computed again where the clip needs them.  Bits as in rms_norm_backward.h.  Borrows all memory.  CPU
// only so far.  Errors (InvalidArgument): shapes or dtypes that do not fit.
#pragma once

#include "absl/status/status.h"
#include "workers/ops/rope/qkv.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct QkvGradients {
  TensorView dqkv;          // [T, (N + 2 Nkv) * D] model dtype; in place
  TensorView dq_norm = {};  // as desc.q_norm, AccDType, added to; raw() == nullptr: none or not wanted
  TensorView dk_norm = {};
};

absl::Status PrepareQkvBackward(const Stream& stream, const QkvDesc& desc, const RopeTable& rope,
                                const IntView& table_rows,  // [T] of RowOf
                                const TensorView& raw,      // [T, (N + 2 Nkv) * D] model dtype, as projected
                                const QkvGradients& gradients);

}  // namespace switchyard::ops
