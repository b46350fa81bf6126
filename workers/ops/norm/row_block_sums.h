// Sums over rows in a fixed order: each block of kSumBlockRows rows by itself, then the blocks' sums in order.  So the
// bits depend on the number of rows, not on threads.  Internal to workers/ops.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "workers/tensor/device.h"
#include "workers/tensor/dtype.h"

namespace switchyard::ops {

inline constexpr int64_t kSumBlockRows = 64;

// to[j] += the sums that sum_block(begin, end, sums) writes for each block of rows [begin, end) of [0, rows).
// to: null: the sums are not wanted.  acc: kF32 or kF64, of sums and of `to`.  Takes the calling thread's
// ScratchUse::kOp.
void AddRowBlocks(const Stream& stream, int64_t rows, DType acc, int64_t width, void* to,
                  absl::FunctionRef<void(int64_t begin, int64_t end, void* sums)> sum_block);

}  // namespace switchyard::ops
