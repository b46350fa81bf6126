// A MoE layer as a program: micro-ops over row ranges and named groups, in the order in which every rank launches them.
//
// The same program is run by the workers' executor and priced by a benchmark (tests/bench/training); a builder
// (build_expert_parallel.h) is a pure function of globally agreed inputs, so that all ranks hold the same program and
// launch the same collectives in the same order.  What a rank's rows are may differ from rank to rank (a rank may have
// none): the program may not.
//
// How it runs: ops are launched in list order.  A communicating op is started at its place in the list and finished
// when the first op that depends on it is reached (or at the end), so whatever stands between runs under the exchange.
//
// Plain data, thread-compatible, Abseil only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace switchyard::pipeline {

enum class MicroOpKind : uint8_t {
  kSplit,          // cuts the rank's rows into `num_chunks` ranges
  kGate,           // router: logits → chosen experts and weights
  kDispatch,       // rows → the ranks of their experts
  kExpert,         // expert FFNs over the rows that are here
  kCombine,        // expert outputs → the ranks of their rows, added to the residual in top-k order
  kAllGather,      // Sharded(group) → Replicated
  kReduceScatter,  // Replicated → Sharded(group), summed
  kAllReduce,      // summed over the group
  kSave,           // keeps a chunk for the backward pass
  kRestore,        // brings it back
};
inline constexpr int kNumMicroOpKinds = 10;

// What an op occupies.  Ops of one class run in list order; classes run beside each other.
enum class StreamClass : uint8_t { kCompute, kAllToAll, kAllReduce, kCopy };
inline constexpr int kNumStreamClasses = 4;

// Which experts a kExpert op runs.
enum class ExpertSet : uint8_t { kRouted, kShared };

struct MicroOp {
  MicroOpKind kind = MicroOpKind::kGate;
  int chunk = 0;           // range `chunk` of `num_chunks` of each rank's rows (RowsOfChunk)
  int num_chunks = 1;      // 1 = all rows
  std::string group = {};  // of communicating ops: a named group of the mesh ("ep"); else empty
  StreamClass stream = StreamClass::kCompute;
  ExpertSet experts = ExpertSet::kRouted;  // of kExpert
  std::vector<int> deps = {};              // indices of earlier ops whose results this one needs
};

struct MoeSchedule {
  std::string name;  // "expert_parallel"
  int num_chunks = 1;
  std::vector<MicroOp> ops;
};

const char* MicroOpKindName(MicroOpKind kind);    // "dispatch"
const char* StreamClassName(StreamClass stream);  // "all_to_all"
bool IsCommunicating(MicroOpKind kind);

// OK, or InvalidArgument naming the op and what is wrong with it.  Checked: deps point backwards; chunks are in range;
// communicating ops, and only they, have a group and a communication stream; each chunk is dispatched, computed and
// combined exactly once, in this order by dependencies, behind a gate; at most one shared-expert op.
absl::Status Validate(const MoeSchedule& schedule);

// Rows [begin, begin + count) of a rank that has `rows`: parts differ by one row at most, the longer ones first; some
// are empty when there are fewer rows than chunks.  REQUIRES: rows >= 0, 0 <= chunk < num_chunks.
struct ChunkRange {
  int64_t begin = 0;
  int64_t count = 0;
};
ChunkRange RowsOfChunk(int64_t rows, int chunk, int num_chunks);

}  // namespace switchyard::pipeline
