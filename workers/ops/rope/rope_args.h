// The checks of a rotation and its kernel's arguments.  Internal to workers/ops.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/rope/rope.h"

namespace switchyard::ops {

// Errors (InvalidArgument): shapes or dtypes that do not fit; a row outside the table.
absl::StatusOr<RopeArgs> MakeRopeArgs(const OpSite& at, const RopeTable& table, int64_t head_dim,
                                      const IntView& table_rows, const TensorView& x);

}  // namespace switchyard::ops
