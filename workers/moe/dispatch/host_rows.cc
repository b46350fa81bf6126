#include "workers/moe/dispatch/host_rows.h"

#include <algorithm>
#include <cstring>

#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kCopyGrainBytes = 64 << 10;

}  // namespace

void GatherTo(const Stream& stream, const TensorView& from, absl::Span<const int32_t> index, char* to) {
  const int64_t bytes = RowBytes(from);
  stream.pool().ParallelFor(static_cast<int64_t>(index.size()), std::max<int64_t>(1, kCopyGrainBytes / bytes),
                            [&](int64_t begin, int64_t end) {
                              for (int64_t i = begin; i < end; ++i)
                                std::memcpy(to + i * bytes, RowAt(from, index[i]), bytes);
                            });
}

}  // namespace switchyard::moe
