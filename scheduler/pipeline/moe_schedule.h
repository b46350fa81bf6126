// A MoE layer as a program: micro-ops over row ranges, in the order in which every rank launches them.
//
// The workers' executor runs the program and a benchmark prices it (tests/bench/training).  A builder
// (build_expert_parallel.h) is a pure function of globally agreed inputs, so that all ranks hold the same program and
// launch the same collectives in the same order; their rows may differ, and a rank may have none.
//
// Ops are launched in list order.  A communicating op starts at its place in the list and is finished when the first op
// that depends on it is reached (or at the end), so whatever stands between runs under the exchange.
//
// Plain data, thread-compatible, Abseil only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace switchyard::pipeline {

enum class MicroOpKind : uint8_t {
  kSplit,     // cuts the rank's rows into `num_chunks` ranges
  kGate,      // router: logits → chosen experts and weights
  kDispatch,  // rows → the ranks of their experts
  kExpert,    // expert FFNs over the rows that are here
  kCombine,   // expert outputs → the ranks of their rows, added to the residual in top-k order
};

// Which experts a kExpert op runs.
enum class ExpertSet : uint8_t { kRouted, kShared };

struct MicroOp {
  MicroOpKind kind = MicroOpKind::kGate;
  int chunk = 0;                           // range `chunk` of `num_chunks` of each rank's rows (RowsOfChunk)
  int num_chunks = 1;                      // 1 = all rows
  ExpertSet experts = ExpertSet::kRouted;  // of kExpert
  std::vector<int> deps = {};              // indices of earlier ops whose results this one needs
};

struct MoeSchedule {
  std::string name;  // "expert_parallel"
  int num_chunks = 1;
  std::vector<MicroOp> ops;
};

const char* MicroOpKindName(MicroOpKind kind);  // "dispatch"
bool IsCommunicating(MicroOpKind kind);

// InvalidArgument names the op and what is wrong with it.  Checked: deps point backwards; chunks are in range; each is
// dispatched, computed and combined once, in this order by dependencies, behind a gate; at most one shared-expert op.
absl::Status Validate(const MoeSchedule& schedule);

// Rows [begin, begin + count) of a rank that has `rows`: parts differ by one row at most, the longer ones first; some
// are empty when there are fewer rows than chunks.  REQUIRES: rows >= 0, 0 <= chunk < num_chunks.
struct ChunkRange {
  int64_t begin = 0;
  int64_t count = 0;
};
ChunkRange RowsOfChunk(int64_t rows, int chunk, int num_chunks);

}  // namespace switchyard::pipeline
