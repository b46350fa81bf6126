#include "scheduler/batching/row_transfers.h"

#include <algorithm>
#include <numeric>

namespace switchyard::batching {

std::vector<RowTransfer> GiveRows(absl::Span<const int32_t> rank_rows, int32_t min_rows) {
  std::vector<RowTransfer> transfers;
  if (min_rows <= 0 || rank_rows.empty()) return transfers;
  const auto num_ranks = static_cast<int32_t>(rank_rows.size());
  const int64_t total = std::accumulate(rank_rows.begin(), rank_rows.end(), int64_t{0});
  const auto floor_mean = static_cast<int32_t>(total / num_ranks);
  const auto ceil_mean = static_cast<int32_t>((total + num_ranks - 1) / num_ranks);
  int32_t to = 0;
  int32_t borrowed = 0;  // by `to`
  for (int32_t from = 0; from < num_ranks; ++from) {
    int32_t excess = rank_rows[from] - ceil_mean;
    while (excess >= min_rows && to < num_ranks) {
      const int32_t room = floor_mean - rank_rows[to] - borrowed;
      if (room <= 0) {
        ++to;
        borrowed = 0;
        continue;
      }
      const int32_t rows = std::min(excess, std::max(room, min_rows));
      transfers.push_back({.from = from, .to = to, .rows = rows});
      excess -= rows;
      borrowed += rows;
    }
  }
  return transfers;
}

std::vector<int32_t> ComputedRows(absl::Span<const int32_t> rank_rows, absl::Span<const RowTransfer> transfers) {
  std::vector<int32_t> computed(rank_rows.begin(), rank_rows.end());
  for (const RowTransfer& transfer : transfers) {
    computed[transfer.from] -= transfer.rows;
    computed[transfer.to] += transfer.rows;
  }
  return computed;
}

}  // namespace switchyard::batching
