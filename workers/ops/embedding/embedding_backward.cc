#include "workers/ops/embedding/embedding_backward.h"

#include <algorithm>

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

absl::Status EmbedBackward(const Stream& stream, const IntView& tokens, const TensorView& d,
                           const TensorView& gradient) {
  const OpSite at = {"embedding_backward", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "gradient", gradient));
  const int64_t num_tokens = tokens.size(), width = gradient.dim(1);
  RETURN_IF_ERROR(ExpectView(at, "gradient", gradient, AccDType(gradient.dtype()), gradient.shape()));
  RETURN_IF_ERROR(ExpectView(at, "d", d, gradient.dtype(), {num_tokens, width}));
  RETURN_IF_ERROR(ExpectInts(at, "tokens", tokens, num_tokens, 0, gradient.dim(0)));
  const EmbedBackwardArgs args = {.dtype = DTypeCode(gradient.dtype()),
                                  .tokens = tokens.data(),
                                  .d = RowsOf(d),
                                  .gradient = RowsOf(gradient),
                                  .num_tokens = num_tokens};
  // Whole cache lines of a row.
  const int64_t grain = std::max<int64_t>(width / (4 * stream.pool().num_threads()) / 16 * 16, 16);
  stream.pool().ParallelFor(width, grain,
                            [&](int64_t begin, int64_t end) { CpuKernels().embed_backward(args, begin, end); });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
