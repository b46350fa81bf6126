// Sharded dense state (ZeRO-1: Rajbhandari et al. 2020, "ZeRO: Memory optimizations toward training trillion parameter
// models", stage 1): which elements of a dense parameter's master and moments are on which rank.
//
// Each block of parameters (parameters.h) is cut into as many runs of neighbouring elements as there are ranks, so that
// the sum of a large gradient has a part for every rank.  Borders are those of the norm's blocks (adamw.h): a rank
// computes whole blocks, and the norm has the bits that it has where all ranks have all.  So some ranks have nothing of
// a small block, and what cannot be divided evenly evens out over the blocks.  Pure: the same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace switchyard::train {

// Elements [begin, begin + count) of a block, row by row.
struct ElementRange {
  int64_t begin = 0, count = 0;
  int64_t end() const { return begin + count; }
  bool operator==(const ElementRange& other) const = default;
};
ElementRange Intersect(const ElementRange& a, const ElementRange& b);

struct DenseShard {
  std::vector<int64_t> borders = {};  // [R + 1]: elements [borders[r], borders[r + 1]) are on rank r
  int32_t writer = 0;                 // the rank that writes the block into checkpoints
};

// Borders of the gradients that are sharded, by the address of their first element.  Borrows them.
using ShardedGradients = absl::flat_hash_map<const void*, const std::vector<int64_t>*>;

inline constexpr int64_t kGatherBytes = int64_t{16} << 20;

// A rank among those that dense state is sharded over; world 1: nothing is sharded.
struct ShardPlace {
  int rank = 0, world = 1;
  int64_t gather_bytes = kGatherBytes;  // of a call that gathers weights; tests choose others; the same on all ranks
};

struct DenseBlock {
  // Of elements whose norms are computed by themselves; they follow each other and cover the block.
  std::vector<ElementRange> ranges = {};
  int64_t states = 3;  // numbers that are kept of each element
};

// REQUIRES: world >= 1.
std::vector<DenseShard> PlanShards(absl::Span<const DenseBlock> blocks, int world);

// The run of rank `rank`'s elements that belongs to the piece [begin, begin + count) of a gradient of `borders.back()`
// elements: pieces that follow each other have runs that follow each other, of every rank as large a part as of the
// gradient.  REQUIRES: borders.back() > 0.
ElementRange RunOfPiece(absl::Span<const int64_t> borders, int rank, const ElementRange& piece);

}  // namespace switchyard::train
