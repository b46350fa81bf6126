#include "workers/ops/rope/rope_backward.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/backward_kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/rope/rope_args.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

absl::Status ApplyRopeBackward(const Stream& stream, const RopeTable& table, int64_t head_dim,
                               const IntView& table_rows, const TensorView& dx) {
  const OpSite at = {"rope_backward", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  ASSIGN_OR_RETURN(const RopeArgs args, MakeRopeArgs(at, table, head_dim, table_rows, dx));
  if (args.half == 0) return absl::OkStatus();
  stream.pool().ParallelFor(dx.dim(0), RowGrain(dx.dim(1) * DTypeBytes(dx.dtype())),
                            [&](int64_t begin, int64_t end) { BackwardKernels().rope(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
