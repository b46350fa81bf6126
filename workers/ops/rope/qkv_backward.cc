#include "workers/ops/rope/qkv_backward.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/core/thread_scratch.h"
#include "workers/ops/norm/rms_norm.h"
#include "workers/ops/norm/rms_norm_backward.h"
#include "workers/ops/rope/rope.h"

namespace switchyard::ops {
namespace {

// q, k or v.
struct Part {
  const TensorView& gamma;  // raw() == nullptr: no norm
  TensorView raw, d;
  const TensorView& dgamma;
  bool rotated;
};

int64_t HeadDimOfNorm(const QkvDesc& desc, const TensorView& gamma) {
  return gamma.NumElements() == desc.head_dim ? desc.head_dim : 0;
}

// The clip's input: the normed rows if there is a norm.
absl::StatusOr<TensorView> Normed(const Stream& stream, const QkvDesc& desc, const Part& part) {
  if (part.gamma.raw() == nullptr) return part.raw;
  void* const memory = ThreadScratch(ScratchUse::kOp, part.raw.NumElements() * DTypeBytes(part.raw.dtype()));
  const TensorView normed(memory, part.raw.dtype(), part.raw.shape());
  RETURN_IF_ERROR(
      RmsNorm(stream, {.eps = desc.eps, .head_dim = HeadDimOfNorm(desc, part.gamma)}, part.raw, part.gamma, normed));
  return normed;
}

absl::Status Unclip(const Stream& stream, const QkvDesc& desc, const Part& part) {
  ASSIGN_OR_RETURN(const TensorView x, Normed(stream, desc, part));
  const ClampBackwardArgs args = {
      .dtype = DTypeCode(x.dtype()), .x = RowsOf(x), .dx = RowsOf(part.d), .width = x.dim(1), .limit = desc.clip};
  return RunOnCpu(stream, x.dim(0), 3 * x.dim(1) * DTypeBytes(x.dtype()), CpuKernels().clamp_backward, args);
}

absl::Status Undo(const Stream& stream, const QkvDesc& desc, const RopeTable& rope, const IntView& table_rows,
                  const Part& part) {
  if (part.rotated) RETURN_IF_ERROR(ApplyRopeBackward(stream, rope, desc.head_dim, table_rows, part.d));
  if (desc.clip > 0) RETURN_IF_ERROR(Unclip(stream, desc, part));
  if (part.gamma.raw() == nullptr) return absl::OkStatus();
  return RmsNormBackward(stream, {.eps = desc.eps, .head_dim = HeadDimOfNorm(desc, part.gamma), .dgamma = part.dgamma},
                         part.raw, part.gamma, part.d, part.d);
}

}  // namespace

absl::Status PrepareQkvBackward(const Stream& stream, const QkvDesc& desc, const RopeTable& rope,
                                const IntView& table_rows, const TensorView& raw, const QkvGradients& gradients) {
  const OpSite at = {"qkv_backward", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "raw", raw));
  const int64_t q = desc.num_heads * desc.head_dim, kv = desc.num_kv_heads * desc.head_dim;
  if (desc.num_heads < 1 || desc.num_kv_heads < 1 || desc.head_dim < 1 || raw.dim(1) != q + 2 * kv) {
    return absl::InvalidArgumentError(absl::StrCat("qkv_backward: ", desc.num_heads, " + 2 * ", desc.num_kv_heads,
                                                   " heads of ", desc.head_dim, " are not ", raw.ToString()));
  }
  const TensorView& d = gradients.dqkv;
  RETURN_IF_ERROR(ExpectView(at, "dqkv", d, raw.dtype(), raw.shape()));
  const TensorView none;
  RETURN_IF_ERROR(
      Undo(stream, desc, rope, table_rows, {desc.q_norm, raw.Columns(0, q), d.Columns(0, q), gradients.dq_norm, true}));
  RETURN_IF_ERROR(Undo(stream, desc, rope, table_rows,
                       {desc.k_norm, raw.Columns(q, kv), d.Columns(q, kv), gradients.dk_norm, true}));
  return Undo(stream, desc, rope, table_rows, {none, raw.Columns(q + kv, kv), d.Columns(q + kv, kv), none, false});
}

}  // namespace switchyard::ops
