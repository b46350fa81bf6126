#include "workers/ops/attention/attention_backward.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/attention/attention.h"
#include "workers/ops/attention/attention_dropout.h"
#include "workers/ops/attention/attention_layout.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/core/thread_scratch.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

int64_t AttentionBackwardScratchBytes(int64_t rows, int64_t head_dim) {
  return LayOutAttentionBackward(rows, head_dim).total * int64_t{sizeof(double)};
}

namespace {

absl::Status CheckSequences(absl::Span<const WholeSequence> sequences, int64_t rows) {
  int64_t end = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t first = sequences[s].first_row, count = sequences[s].num_rows;
    if (first < end || count < 0 || first + count > rows) {
      return absl::InvalidArgumentError(absl::StrCat("attention_backward: sequence ", s, " has rows [", first, ", ",
                                                     first + count, "), must be in [", end, ", ", rows, ")"));
    }
    end = first + count;
  }
  return absl::OkStatus();
}

absl::Status CheckHeads(const AttentionBackwardDesc& desc) {
  if (desc.num_kv_heads >= 1 && desc.num_heads >= 1 && desc.num_heads % desc.num_kv_heads == 0 && desc.head_dim >= 1 &&
      desc.head_dim <= kMaxHeadDim && desc.window >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("attention_backward: cannot take ", desc.num_heads, " heads over ",
                                                 desc.num_kv_heads, " kv heads of ", desc.head_dim, " (at most ",
                                                 kMaxHeadDim, "), window ", desc.window));
}

}  // namespace

absl::Status AttentionBackward(const Stream& stream, const AttentionBackwardDesc& desc,
                               absl::Span<const WholeSequence> sequences, const TensorView& qkv,
                               const TensorView& attended, const TensorView& dattended, const TensorView& dqkv) {
  const OpSite at = {"attention_backward", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(CheckHeads(desc));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "qkv", qkv));
  RETURN_IF_ERROR(CheckAttentionDropout(at, desc.dropout, qkv.dim(0)));
  const int64_t dim = desc.head_dim, group = desc.num_heads / desc.num_kv_heads, q_width = desc.num_heads * dim;
  const int64_t kv_width = desc.num_kv_heads * dim;
  const Shape packed = {qkv.dim(0), q_width + 2 * kv_width}, heads = {qkv.dim(0), q_width};
  RETURN_IF_ERROR(ExpectView(at, "qkv", qkv, qkv.dtype(), packed));
  RETURN_IF_ERROR(ExpectView(at, "attended", attended, qkv.dtype(), heads));
  RETURN_IF_ERROR(ExpectView(at, "dattended", dattended, qkv.dtype(), heads));
  RETURN_IF_ERROR(ExpectView(at, "dqkv", dqkv, qkv.dtype(), packed));
  RETURN_IF_ERROR(CheckSequences(sequences, qkv.dim(0)));
  stream.pool().Run(static_cast<int64_t>(sequences.size()) * desc.num_kv_heads, [&](int64_t task) {
    const WholeSequence& sequence = sequences[task / desc.num_kv_heads];
    const int64_t row = sequence.first_row, head = task % desc.num_kv_heads;
    const int64_t q = head * group * dim, k = q_width + head * dim, v = k + kv_width;
    CpuKernels().attention_backward(
        {.dtype = DTypeCode(qkv.dtype()),
         .q = ElementAt(qkv, row, q),
         .k = ElementAt(qkv, row, k),
         .v = ElementAt(qkv, row, v),
         .attended = ElementAt(attended, row, q),
         .dattended = ElementAt(dattended, row, q),
         .dq = ElementAt(dqkv, row, q),
         .dk = ElementAt(dqkv, row, k),
         .dv = ElementAt(dqkv, row, v),
         .qkv_stride = qkv.row_stride(),
         .attended_stride = attended.row_stride(),
         .dattended_stride = dattended.row_stride(),
         .dqkv_stride = dqkv.row_stride(),
         .rows = sequence.num_rows,
         .group = group,
         .head_dim = dim,
         .window = desc.window,
         .scale = desc.scale,
         .dropout = AttentionDropoutOf(desc.dropout, row, head * group),
         .scratch = ThreadScratch(ScratchUse::kTask, AttentionBackwardScratchBytes(sequence.num_rows, dim)),
         .yield = [](const void* pool) { static_cast<const ThreadPool*>(pool)->Yield(); },
         .pool = &stream.pool()});
  });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
