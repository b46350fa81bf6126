#include "workers/train/parameters/dense_shards.h"

#include <algorithm>
#include <iterator>

#include "absl/numeric/int128.h"
#include "scheduler/base/check.h"
#include "workers/ops/optimizer/adamw.h"

namespace switchyard::train {
namespace {

// The borders of the norm's blocks, from 0 to the block's end.
std::vector<int64_t> BordersOfNorm(const std::vector<ElementRange>& ranges) {
  std::vector<int64_t> borders = {0};
  for (const ElementRange& range : ranges) {
    for (int64_t at = range.begin; at < range.end(); at += ops::kNormBlock) {
      borders.push_back(std::min(at + ops::kNormBlock, range.end()));
    }
  }
  return borders;
}

int64_t Nearest(const std::vector<int64_t>& borders, int64_t to) {
  const auto above = std::lower_bound(borders.begin(), borders.end(), to);
  if (above == borders.begin()) return *above;
  if (above == borders.end()) return borders.back();
  return *above - to < to - *std::prev(above) ? *above : *std::prev(above);
}

// How much each rank should get of `count`, so that all have the same, or those that have more get nothing.
std::vector<int64_t> EvenedOut(const std::vector<int64_t>& have, int64_t count) {
  std::vector<int64_t> sorted = have;
  std::sort(sorted.begin(), sorted.end());
  int64_t sum = count, level = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    sum += sorted[i];
    level = sum / static_cast<int64_t>(i + 1);
    if (i + 1 < sorted.size() && level <= sorted[i + 1]) break;
  }
  std::vector<int64_t> parts;
  for (const int64_t each : have) parts.push_back(std::max<int64_t>(0, level - each));
  return parts;
}

}  // namespace

ElementRange Intersect(const ElementRange& a, const ElementRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max<int64_t>(0, std::min(a.end(), b.end()) - begin)};
}

std::vector<DenseShard> PlanShards(absl::Span<const DenseBlock> blocks, int world) {
  const auto ranks = static_cast<size_t>(world);
  std::vector<int64_t> kept(ranks, 0), written(ranks, 0);  // numbers
  std::vector<DenseShard> shards;
  for (const DenseBlock& block : blocks) {
    const std::vector<int64_t> norm = BordersOfNorm(block.ranges);
    const std::vector<int64_t> parts = EvenedOut(kept, norm.back() * block.states);
    DenseShard& shard = shards.emplace_back();
    shard.borders.push_back(0);
    int64_t wanted = 0;
    for (size_t r = 0; r < ranks; ++r) {
      wanted += parts[r];
      shard.borders.push_back(r + 1 == ranks ? norm.back() : Nearest(norm, wanted / block.states));
      kept[r] += (shard.borders[r + 1] - shard.borders[r]) * block.states;
    }
    shard.writer = static_cast<int32_t>(std::min_element(written.begin(), written.end()) - written.begin());
    written[static_cast<size_t>(shard.writer)] += norm.back() * block.states;
  }
  return shards;
}

ElementRange RunOfPiece(absl::Span<const int64_t> borders, int rank, const ElementRange& piece) {
  const int64_t first = borders[rank], own = borders[rank + 1] - first, all = borders.back();
  SY_CHECK_GE(all, 1);
  const auto at = [&](int64_t element) { return static_cast<int64_t>(absl::int128(own) * element / all); };
  return {first + at(piece.begin), at(piece.end()) - at(piece.begin)};
}

}  // namespace switchyard::train
