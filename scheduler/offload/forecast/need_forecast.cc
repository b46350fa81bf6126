#include "scheduler/offload/forecast/need_forecast.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard::offload {
namespace {

constexpr int kRowBits = 20;  // of a popularity's fraction
constexpr int64_t kHalvedAt = 1 << 13;
constexpr int64_t kFirstGuess = 16;  // observations that the first guess counts for

// 1 - exp(-rows) of a level's middle, in 2^-16: the first level is below 1/64 row, the others are half octaves.
constexpr int32_t kGuess[] = {256,   1207,  1700,  2391,  3355,  4694,  6539,  9052,  12425, 16855,
                              22495, 29374, 37269, 45583, 53344, 59461, 63268, 64973, 65457, 65531};

}  // namespace

NeedForecast::NeedForecast(const OffloadShape& shape)
    : num_layers_(shape.num_layers), expected_(static_cast<size_t>(shape.num_layers)) {
  for (auto& cells : cells_) {
    for (int level = 0; level < kLevels; ++level)
      cells[static_cast<size_t>(level)] = {.needed = kGuess[level] * kFirstGuess, .seen = kFirstGuess};
  }
}

int NeedForecast::LevelOf(int64_t popularity) {
  constexpr int64_t kLeast = int64_t{1} << (kRowBits - 6);
  if (popularity < kLeast) return 0;
  int octave = 0;
  while (popularity >> (octave + 1) >= kLeast) ++octave;
  // The upper half of an octave begins at its square root of two: 181 / 128.
  const bool upper = popularity >= (kLeast << octave) / 128 * 181;
  return std::min(kLevels - 1, 1 + 2 * octave + (upper ? 1 : 0));
}

size_t NeedForecast::DistanceOf(int layer, int ahead) {
  return static_cast<size_t>(layer == kBeforePass ? kMaxAhead + ahead - 1 : ahead - 1);
}

int32_t NeedForecast::ChanceOf(int64_t popularity, int ahead, int layer) const {
  const Cell& cell = cells_[DistanceOf(layer, ahead)][static_cast<size_t>(LevelOf(popularity))];
  return static_cast<int32_t>(cell.needed / cell.seen);
}

void NeedForecast::Observe(const LayerNeed& need) {
  forecasts_.clear();
  for (size_t d = 0; d < kDistances; ++d) {
    std::vector<int8_t>& levels = expected_[static_cast<size_t>(need.layer)][d];
    for (size_t e = 0; e < levels.size(); ++e) {
      Cell& cell = cells_[d][static_cast<size_t>(levels[e])];
      if (need.rows[e] > 0) cell.needed += kChance;
      if (++cell.seen >= kHalvedAt) cell = {.needed = cell.needed / 2, .seen = cell.seen / 2};
    }
    levels.clear();
  }
}

void NeedForecast::Expect(int layer, int ahead, absl::Span<const int64_t> popularity) {
  SY_CHECK(1 <= ahead && ahead <= kMaxAhead);
  while (!forecasts_.empty() && forecasts_.back().ahead >= ahead) forecasts_.pop_back();
  const size_t d = DistanceOf(layer, ahead);
  std::vector<int8_t>& levels = expected_[static_cast<size_t>((layer + ahead) % num_layers_)][d];
  levels.clear();
  chances_[d].clear();
  for (const int64_t rows : popularity) {
    levels.push_back(static_cast<int8_t>(LevelOf(rows)));
    chances_[d].push_back(ChanceOf(rows, ahead, layer));
  }
  forecasts_.push_back({.ahead = ahead, .chance = chances_[d]});
}

}  // namespace switchyard::offload
