#include "workers/ops/rope/qkv.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/activation/clamp.h"
#include "workers/ops/attention/kv_checks.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/norm/rms_norm.h"

namespace switchyard::ops {
namespace {

struct Parts {
  TensorView q, k, v;
};

Parts PartsOf(const QkvDesc& desc, const TensorView& qkv) {
  const int64_t q_width = desc.num_heads * desc.head_dim, kv_width = desc.num_kv_heads * desc.head_dim;
  return {qkv.Columns(0, q_width), qkv.Columns(q_width, kv_width), qkv.Columns(q_width + kv_width, kv_width)};
}

absl::Status CheckQkv(const OpSite& at, const QkvDesc& desc, const TensorView& qkv) {
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "qkv", qkv));
  const int64_t width = (desc.num_heads + 2 * desc.num_kv_heads) * desc.head_dim;
  if (qkv.dim(1) == width && desc.num_heads > 0 && desc.num_kv_heads > 0 && desc.head_dim > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("qkv: ", desc.num_heads, " + 2 * ", desc.num_kv_heads, " heads of ",
                                                 desc.head_dim, " are not ", qkv.ToString()));
}

absl::Status CheckNorm(const OpSite& at, const char* name, const TensorView& gamma, const QkvDesc& desc,
                       const TensorView& heads) {
  if (gamma.raw() == nullptr) return absl::OkStatus();
  const int64_t width = gamma.NumElements() == desc.head_dim ? desc.head_dim : heads.dim(1);
  return ExpectView(at, name, gamma, heads.dtype(), {width});
}

absl::Status CheckForCuda(const OpSite& at, const QkvDesc& desc, const RopeTable& rope, const IntView& table_rows,
                          const TensorView& qkv) {
  const Parts parts = PartsOf(desc, qkv);
  RETURN_IF_ERROR(CheckNorm(at, "q_norm", desc.q_norm, desc, parts.q));
  RETURN_IF_ERROR(CheckNorm(at, "k_norm", desc.k_norm, desc, parts.k));
  RETURN_IF_ERROR(ExpectInts(at, "table rows", table_rows, qkv.dim(0), 0, rope.num_rows()));
  if ((desc.q_norm.raw() == nullptr) == (desc.k_norm.raw() == nullptr) && rope.rotary_dim() <= desc.head_dim &&
      rope.cos().dtype() == AccDType(qkv.dtype()) && rope.cos().device() == at.device) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("qkv: one norm of two, rotary_dim ", rope.rotary_dim(), " over ",
                                                 desc.head_dim, ", or the table is ", rope.cos().ToString()));
}

absl::Status Norm(const Stream& stream, const QkvDesc& desc, const TensorView& gamma, const TensorView& heads) {
  if (gamma.raw() == nullptr) return absl::OkStatus();
  const bool per_head = gamma.NumElements() == desc.head_dim;
  return RmsNorm(stream, {.eps = desc.eps, .head_dim = per_head ? desc.head_dim : 0}, heads, gamma, heads);
}

}  // namespace

absl::Status PrepareQkv(const Stream& stream, const QkvDesc& desc, const RopeTable& rope, const IntView& table_rows,
                        const TensorView& qkv) {
  RETURN_IF_ERROR(CheckQkv({"qkv", stream.device()}, desc, qkv));
  const Parts parts = PartsOf(desc, qkv);
  RETURN_IF_ERROR(Norm(stream, desc, desc.q_norm, parts.q));
  RETURN_IF_ERROR(Norm(stream, desc, desc.k_norm, parts.k));
  if (desc.clip > 0) RETURN_IF_ERROR(Clamp(stream, desc.clip, qkv));
  RETURN_IF_ERROR(ApplyRope(stream, rope, desc.head_dim, table_rows, parts.q));
  return ApplyRope(stream, rope, desc.head_dim, table_rows, parts.k);
}

absl::Status PrepareAndCacheQkv(const Stream& stream, const QkvDesc& desc, const RopeTable& rope,
                                const IntView& table_rows, const TensorView& qkv, const SequenceBatch& sequences,
                                const KvCacheView& cache) {
  const OpSite at = {"qkv", stream.device()};
  RETURN_IF_ERROR(CheckQkv(at, desc, qkv));
  const Parts parts = PartsOf(desc, qkv);
  if (at.device.is_cpu()) {
    RETURN_IF_ERROR(PrepareQkv(stream, desc, rope, table_rows, qkv));
    return WriteKv(stream, sequences, parts.k, parts.v, cache);
  }
  RETURN_IF_ERROR(CheckForCuda(at, desc, rope, table_rows, qkv));
  RETURN_IF_ERROR(CheckKvCache(at, cache, qkv.dtype()));
  RETURN_IF_ERROR(CheckSequences(at, sequences, qkv.dim(0), cache));
  if (cache.num_kv_heads() != desc.num_kv_heads || cache.head_dim() != desc.head_dim) {
    return absl::InvalidArgumentError(absl::StrCat("qkv: the cache has ", cache.num_kv_heads(), " heads of ",
                                                   cache.head_dim(), ", not ", desc.num_kv_heads, " of ",
                                                   desc.head_dim));
  }
  const CudaQkvArgs args = {.kv = MakeCudaKvArgs(*sequences.on_device, parts.k, parts.v, cache),
                            .q_rows = parts.q.raw(),
                            .q_stride = parts.q.row_stride(),
                            .heads = desc.num_heads,
                            .q_gamma = desc.q_norm.raw(),
                            .k_gamma = desc.k_norm.raw(),
                            .norm_per_head = desc.q_norm.raw() != nullptr && desc.q_norm.NumElements() == desc.head_dim,
                            .eps = desc.eps,
                            .clip = desc.clip,
                            .cos = rope.cos().raw(),
                            .sin = rope.sin().raw(),
                            .table_rows = table_rows.data(),
                            .half = rope.rotary_dim() / 2};
  return RunOnCuda("qkv", stream, &CudaKernelTable::qkv, args);
}

}  // namespace switchyard::ops
