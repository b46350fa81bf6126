// Which replica computes which rows of a layer: a table that every rank makes alike from the gathered counts.
//
// A row's name is (source rank, expert, ordinal), ordinal = how many rows of this rank and expert come before it in
// (token, choice) order.  So a source knows where a row goes, and an owner which rows come, without a message.
// There are two splits: by the actual counts (SplitByCounts; scheduler/PAPERS.md, "Beyond Lina"), which minimises the
// busiest device, and as planned beforehand (SplitAsPlanned: Lina's "tokens per replica", scheduler/PAPERS.md,
// item 6).  Rows stay on their source rank where that costs no balance.  Pure, integers only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/layer_costs.h"
#include "scheduler/placement/route/min_max.h"
#include "scheduler/placement/route/replica_index.h"

namespace switchyard::placement {

// The gathered counts: rows of each rank for each expert of one layer.  Borrows.
struct RowCounts {
  int num_ranks = 0;               // R: rank r is device r
  int num_experts = 0;             // E
  absl::Span<const int32_t> rows;  // [R, E] >= 0

  int32_t At(int rank, int expert) const { return rows[static_cast<size_t>(rank) * num_experts + expert]; }
  // [E]
  std::vector<int64_t> OfExperts() const;
};

struct SplitPiece {
  int32_t device = 0;
  int32_t rows = 0;  // > 0
  bool operator==(const SplitPiece& other) const = default;
};

class SplitTable {
 public:
  SplitTable() = default;
  // A table that somebody else made.  pieces: of (rank 0, expert 0), (0, 1) ...; offsets [R * E + 1] says where
  // each begins.  InvalidArgument: no such table.
  static absl::StatusOr<SplitTable> FromPieces(int num_ranks, int num_experts, std::vector<int32_t> offsets,
                                               std::vector<SplitPiece> pieces);
  int num_ranks() const { return num_ranks_; }
  int num_experts() const { return num_experts_; }
  // The rows of a rank for an expert, in their order: the first pieces[0].rows of them go to pieces[0].device, and so
  // on.  Devices rise.  Empty if there are no rows.
  absl::Span<const SplitPiece> Pieces(int source_rank, int expert) const;
  // Rows that each device computes, [R].
  const std::vector<int64_t>& loads() const { return loads_; }
  int64_t busiest() const;
  // The arguments of FromPieces.
  absl::Span<const int32_t> offsets() const { return offsets_; }
  absl::Span<const SplitPiece> pieces() const { return pieces_; }
  bool operator==(const SplitTable& other) const { return offsets_ == other.offsets_ && pieces_ == other.pieces_; }

 private:
  friend class SplitBuilder;
  int num_ranks_ = 0;
  int num_experts_ = 0;
  std::vector<int32_t> offsets_;  // [R * E + 1]
  std::vector<SplitPiece> pieces_;
  std::vector<int64_t> loads_;
};

// The busiest device has as few rows as these replicas allow (exact).  Second to that, many rows stay at their source
// (not exact).  Where that makes the busiest device done sooner, as experts' weights take long to read beside their
// rows (costs.weights_ps), small parts of experts are joined or all experts stay whole instead; such a split is good,
// not exact, and may have more rows leave their source. REQUIRES: as many devices as ranks, the same experts.
SplitTable SplitByCounts(const RowCounts& counts, const ReplicaIndex& replicas, const LayerCosts& costs = {});

// Each expert's rows in the proportions of `planned` [P] (any unit; all zero for an expert = equal parts), by largest
// remainder, ties to the smaller device.
SplitTable SplitAsPlanned(const RowCounts& counts, const ReplicaIndex& replicas, absl::Span<const int64_t> planned);

// The plan for SplitAsPlanned: an estimate [E] split so that its busiest device is the least, [P].
std::vector<int64_t> PlannedRows(const ReplicaIndex& replicas, absl::Span<const int64_t> estimate);

}  // namespace switchyard::placement
