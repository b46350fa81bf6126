// The meaning of a mode of communication for the sums of gradients, and for the all-to-alls of a MoE layer.  Pure: the
// same on every rank.
//
//   mode               an op is              may start
//   fair               a bucket of tensors   at once
//   fixed              a bucket of tensors   not from a layer's first all-to-all to its last
//   ar_last            25 MB of tensors      when backward is done
//   priority           a tensor              not while an all-to-all waits, runs or is next
//   priority_ticketed  a tensor              the same as rank 0 sees it, which sends it
//   partition          a piece of a tensor   as priority
//   pipelining         a piece of a tensor   as priority; all-to-alls are cut, too
//   full               as pipelining; besides, experts are packed (expert_packing.h)
//   preempt            a piece of a tensor   as priority
// One op runs at a time, and when backward is done two, which hide each other's latency, but for buckets, which share
// one memory. A bucket has the 25 MB of PyTorch's DDP where a piece has Lina's 30 MB, and scales with it for small
// models. Only in priority_ticketed does an all-to-all wait for a sum.  Elsewhere the part of a sum that has been
// launched may share the network with one.  In preempt the connection itself lets all-to-alls go first, between two
// frames of that part (OvertakesOnTheSocket; workers/comm/tcp/socket_communicator.h); over other connections it is
// partition.
//
// The plan of sums follows from shapes alone.  Source: Lina, section 4 (scheduler/PAPERS.md, items 1 to 3), corrected
// so that it cannot deadlock: sums and all-to-alls are two channels, each in its own order; a rule only delays a sum.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/jobs/comm_spec.h"

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

// The state of a rank's all-to-alls in backward.
struct AllToAllState {
  bool in_pair = false;   // a layer's first one has started, its last one is not done
  int32_t under_way = 0;  // waiting or running
  bool imminent = false;  // the layer's combine is being differentiated: its first all-to-all is next
  bool backward_done = false;
};

bool MayReduce(ReduceRule rule, const AllToAllState& state);

inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

struct ReducePolicy {
  ReduceGrouping grouping = ReduceGrouping::kBuckets;
  int64_t op_bytes = kBucketBytes;
  ReduceRule rule = ReduceRule::kAtTheEnd;
  bool ticketed = false;          // one order over sums and all-to-alls, which rank 0 sends
  bool cuts_all_to_alls = false;  // ChunksOfLayer
};

// Whether the mode wants a group on whose connections all-to-alls overtake sums.
bool OvertakesOnTheSocket(CommMode mode);

// InvalidArgument: pieces without room for an element.
absl::StatusOr<ReducePolicy> ReducePolicyOf(const CommunicationSpec& spec);

// The rows of a micro-batch, of all ranks.
struct LayerRows {
  int64_t rows = 0;
  int32_t world = 1;    // ranks that they are dealt out to
  int32_t holders = 1;  // ranks of one expert-parallel group: world, or fewer where experts are packed
  int64_t top_k = 1;
  int64_t row_bytes = 1;
};

// In how many chunks a MoE layer takes them, at most max_chunks: the granularity's number; else, where the mode cuts
// all-to-alls, so many that what a rank of an even share sends in a dispatch is at most piece_bytes a chunk; else 1.
int32_t ChunksOfLayer(const CommunicationSpec& spec, const LayerRows& rows, int32_t max_chunks);

}  // namespace switchyard::jobs
