// HostRoutes: where the rows of one exchange of a host went, and where received rows came from, for answers and
// gradients; plain data.  Also rows of matrices on the host as bytes, whatever their dtype.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {

struct HostRoutes {
  // (row of x(), slot of its expert) pairs that one rank has for this one.
  struct Incoming {
    int64_t first_row = 0;  // of x(): the rows that came from there, one after the other
    int64_t num_rows = 0;
    std::vector<int32_t> row;    // [pairs]; of this rank, into `own`
    std::vector<int32_t> slot;   // [pairs]
    std::vector<int32_t> y_row;  // [pairs] where the sort by expert put each
  };
  // The (row of a message, slot) pairs that this rank has for another, and the rows of that message.
  struct Outgoing {
    std::vector<int32_t> token;     // [rows]
    std::vector<int32_t> pair_row;  // [pairs] into token
    std::vector<int32_t> pair_slot;
  };

  bool stays = false;              // no rows travel
  std::vector<int32_t> own;        // rows of this rank that experts here want, rising
  int64_t num_rows = 0;            // of x(): those, then the others'
  std::vector<int32_t> rank_of;    // [T * K] who computes (t, k); -1 = dropped, or not of this exchange
  std::vector<int32_t> pair_of;    // [T * K] index among the pairs with that rank
  std::vector<Outgoing> outgoing;  // [R]
  std::vector<Incoming> incoming;  // [R], this rank's own among them
  std::vector<int64_t> back_rows;  // [R + 1] rows behind the outputs made here where each rank's answers come
  // [T * K] row among outputs made here and answers; -1 = dropped.  (AddedOutputs: of partial sums.)
  std::vector<int32_t> slot_row;
};

inline int64_t RowBytes(const TensorView& rows) { return rows.dim(1) * DTypeBytes(rows.dtype()); }
inline char* RowAt(const TensorView& rows, int64_t i) {
  return static_cast<char*>(rows.raw()) + i * rows.row_stride() * DTypeBytes(rows.dtype());
}

// to[i] = from[index[i]], rows of `from`'s width, one after the other; on the stream's threads.
inline void GatherTo(const Stream& stream, const TensorView& from, absl::Span<const int32_t> index, char* to) {
  constexpr int64_t kGrainBytes = 64 << 10;
  const int64_t bytes = RowBytes(from), grain = std::max<int64_t>(1, kGrainBytes / bytes);
  stream.pool().ParallelFor(static_cast<int64_t>(index.size()), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(to + i * bytes, RowAt(from, index[i]), bytes);
  });
}

inline void FillOnes(const TensorView& numbers) {
  VisitDType(numbers.dtype(),
             [&]<class Elem>() { std::fill_n(numbers.data<Elem>(), numbers.NumElements(), static_cast<Elem>(1)); });
}

}  // namespace switchyard::moe
