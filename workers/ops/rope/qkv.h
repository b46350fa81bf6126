// The work between the qkv product and attention as one op: norms of q and k, the clip, the rotation, and the write of
// k and v into the cache.  On the CPU it runs these ops one after the other (rms_norm.h, clamp.h, rope.h,
// kv_cache_view.h); on a device it is one launch.  Borrows all memory.  Errors (InvalidArgument): those of its parts.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/ops/attention/kv_cache_view.h"
#include "workers/ops/rope/rope.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct QkvDesc {
  int64_t num_heads = 0;     // N
  int64_t num_kv_heads = 0;  // Nkv
  int64_t head_dim = 0;      // D
  double eps = 1e-6;
  TensorView q_norm = {};  // [D] or [N*D]; raw() == nullptr: none
  TensorView k_norm = {};  // [D] or [Nkv*D]
  double clip = 0;         // 0 = none
};

// The first part, in place: norms, clip, rotation.
absl::Status PrepareQkv(const Stream& stream, const QkvDesc& desc, const RopeTable& rope,
                        const IntView& table_rows,  // [T] of RowOf
                        const TensorView& qkv);     // [T, (N + 2 Nkv) * D] model dtype; rows may be strided

// All of it.
absl::Status PrepareAndCacheQkv(const Stream& stream, const QkvDesc& desc, const RopeTable& rope,
                                const IntView& table_rows, const TensorView& qkv, const SequenceBatch& sequences,
                                const KvCacheView& cache);

}  // namespace switchyard::ops
