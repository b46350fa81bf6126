// In which order, and in which pieces, the ranks of a training job sum their gradients while backward runs: the same on
// every rank, from shapes alone.  And when one of them may start beside all-to-alls.
//
// Source: Lina, section 4 (scheduler/PAPERS.md, items 1, 2), corrected so that it cannot deadlock: sums and all-to-alls
// are two channels, each in its own order; the rule below only delays a sum, never an all-to-all, so it may be local
// without a deadlock.  What DDP does (buckets of 25 MB, both at once) and a fixed schedule are here to compare with.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::jobs {

enum class ReduceGrouping : uint8_t {
  kTensors,  // each gradient by itself
  kBuckets,  // neighbours in one message until it has the bytes
  kPieces,   // each gradient cut into equal pieces of at most the bytes; none has parts of two gradients
};

struct ReducePiece {
  int32_t tensor = 0;
  int64_t begin = 0, count = 0;  // elements
};

struct ReduceOp {
  std::vector<ReducePiece> pieces;  // summed together
  int32_t after = 0;                // the gradient that must be complete, and all before it: the last of its pieces'
};

// elements: of each gradient, in the order in which backward completes them.  Empty ones are in no op.
// REQUIRES: element_bytes >= 1, op_bytes >= element_bytes.
std::vector<ReduceOp> PlanReduces(absl::Span<const int64_t> elements, int64_t element_bytes, ReduceGrouping grouping,
                                  int64_t op_bytes);

enum class ReduceRule : uint8_t {
  kAtOnce,         // whatever else is under way
  kBetweenPairs,   // not from a layer's first all-to-all to its last
  kAfterAllToAll,  // not while one waits or runs, nor while one is about to come
  kAtTheEnd,       // when backward is done
};

// What a rank knows of its all-to-alls in backward.
struct AllToAllState {
  bool in_pair = false;   // a layer's first one has started, its last one is not done
  int32_t under_way = 0;  // waiting or running
  bool imminent = false;  // the layer's combine is being differentiated: its first all-to-all is next
  bool backward_done = false;
};

bool MayReduce(ReduceRule rule, const AllToAllState& state);

}  // namespace switchyard::jobs
