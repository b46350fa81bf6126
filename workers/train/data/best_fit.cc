#include "workers/train/data/best_fit.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"

namespace switchyard::train {

std::vector<std::vector<int32_t>> PackBestFit(absl::Span<const int32_t> rows, int64_t length, uint64_t seed) {
  struct Piece {
    int32_t rows;
    uint64_t rank;  // among those of the same length
    int32_t index;
  };
  std::vector<Piece> order;
  order.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    SY_CHECK(rows[i] >= 1 && rows[i] <= length);
    order.push_back({rows[i], SplitMix(seed + i * kSplitMixStep), static_cast<int32_t>(i)});
  }
  std::sort(order.begin(), order.end(), [](const Piece& a, const Piece& b) {
    return std::tie(b.rows, a.rank, a.index) < std::tie(a.rows, b.rank, b.index);
  });
  std::vector<std::vector<int32_t>> windows;
  std::map<int64_t, std::vector<size_t>> with_room;  // windows by the rows that are free
  for (const Piece& piece : order) {
    const auto best = with_room.lower_bound(piece.rows);
    size_t window = windows.size();
    int64_t room = length;
    if (best == with_room.end()) {
      windows.emplace_back();
    } else {
      room = best->first;
      window = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) with_room.erase(best);
    }
    windows[window].push_back(piece.index);
    if (room > piece.rows) with_room[room - piece.rows].push_back(window);
  }
  return windows;
}

}  // namespace switchyard::train
