#include "workers/ops/norm/row_block_sums.h"

#include <algorithm>

#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/core/thread_scratch.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

void AddRowBlocks(const Stream& stream, int64_t rows, DType acc, int64_t width, void* to,
                  absl::FunctionRef<void(int64_t begin, int64_t end, void* sums)> sum_block) {
  const int64_t blocks = (rows + kSumBlockRows - 1) / kSumBlockRows, block_bytes = width * DTypeBytes(acc);
  char* const partials = static_cast<char*>(ThreadScratch(ScratchUse::kOp, blocks * block_bytes));
  stream.pool().Run(blocks, [&](int64_t block) {
    const int64_t begin = block * kSumBlockRows;
    sum_block(begin, std::min(begin + kSumBlockRows, rows), partials + block * block_bytes);
  });
  if (to == nullptr) return;
  const AddPartialsArgs args = {
      .dtype = DTypeCode(acc), .partials = partials, .to = to, .count = blocks, .width = width};
  stream.pool().ParallelFor(width, std::max<int64_t>(RowGrain(blocks * DTypeBytes(acc)), 16),
                            [&](int64_t begin, int64_t end) { CpuKernels().add_partials(args, begin, end); });
}

}  // namespace switchyard::ops
