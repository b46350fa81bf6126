#include "workers/ops/core/row_blocks.h"

#include <limits>
#include <numeric>

namespace switchyard::ops {

bool LayOutRowBlocks(int rank, int ranks, int64_t row_bytes, const RowBlockSize* sizes, RowBlocks* blocks) {
  if (ranks > kMaxExchangeRanks) return false;
  // So many rows are a multiple of 16 bytes.
  const int64_t step = 16 / std::gcd(row_bytes, int64_t{16});
  const auto round_up = [step](int64_t rows) { return (rows + step - 1) / step * step; };
  int64_t row = 0, pair = sizes[rank].pairs;
  for (int r = 0; r < ranks; ++r) {
    const auto [rows, pairs] = sizes[r];
    if (rows < 0 || pairs < 0 || rows > std::numeric_limits<int32_t>::max()) return false;
    const bool has_head = r != rank && pairs > 0;
    const int64_t head_bytes = has_head ? (kRowBlockHeadInts + 2 * pairs) * int64_t{sizeof(int32_t)} : 0;
    const int64_t first_row = row + round_up((head_bytes + row_bytes - 1) / row_bytes);
    const int64_t end = pairs > 0 ? first_row + round_up(rows) : row;
    if (end > std::numeric_limits<int32_t>::max() || pair + pairs > std::numeric_limits<int32_t>::max()) return false;
    blocks->of[r] = {.head_row = static_cast<int32_t>(row),
                     .first_row = static_cast<int32_t>(pairs > 0 ? first_row : row),
                     .max_rows = static_cast<int32_t>(pairs > 0 ? rows : 0),
                     .max_pairs = static_cast<int32_t>(pairs),
                     .pair_begin = static_cast<int32_t>(r == rank ? 0 : pair)};
    row = end;
    if (r != rank) pair += pairs;
  }
  blocks->ranks = ranks;
  blocks->rank = rank;
  blocks->num_rows = static_cast<int32_t>(row);
  blocks->num_pairs = static_cast<int32_t>(pair);
  blocks->row_bytes = row_bytes;
  return true;
}

}  // namespace switchyard::ops
