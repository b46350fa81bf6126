// What every rank tells the others after a layer's gate: how many of its rows each expert has, what it expects of
// coming layers, and a hash of what it decided last.
//
// One small all-gather of class all-to-all, so that its order among the exchanges is the schedule's.  Waits for the
// slowest gate of the group, which a dispatch would do, too.  Where hashes differ all ranks see it, and exchange their
// digests: the error names the ranks and the first field.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/decision_digest.h"
#include "scheduler/placement/layer_decision.h"
#include "scheduler/placement/split.h"
#include "scheduler/popularity/popularity.h"
#include "workers/comm/message.h"
#include "workers/moe/layer_placer.h"

namespace switchyard {

class DecisionGather {
 public:
  // Of more estimates the nearest layers' are told.
  static constexpr int kMaxEstimates = 2;

  // estimates: whether messages have room for them; the same on all ranks.
  DecisionGather(int num_layers, int num_experts, bool estimates);

  // Borrowed until the next call.
  struct Told {
    RowCounts counts;                           // [R, E]
    absl::Span<const LayerEstimate> estimates;  // sums over the ranks, nearest layer first
  };
  // last: digest of this rank's last decision.  Errors: InvalidArgument (an expert id outside [-1, E), with its place),
  // Internal (ranks decided differently, or tell what cannot be; the group is aborted), the communicator's.
  // REQUIRES: rows.topk_idx is on the CPU.
  absl::StatusOr<Told> Gather(const GatedRows& rows, const DecisionDigest& last);

 private:
  // Offsets in a rank's message, in bytes.
  struct Layout {
    int64_t hash = 0;
    int64_t layers = 0;      // [kMaxEstimates] int64; -1 = no estimate
    int64_t popularity = 0;  // [kMaxEstimates, E] int64
    int64_t counts = 0;      // [E] int32
    int64_t bytes = 0;
  };

  absl::Status Pack(const GatedRows& rows, uint64_t hash);
  // Of all ranks' messages.
  absl::Status Read(absl::Span<const char* const> messages, int moe_layer);
  absl::Status ReadEstimates(const char* message, int rank);
  absl::Status NameMismatch(const GatedRows& rows, const DecisionDigest& mine);

  const int num_layers_, num_experts_;
  const bool has_estimates_;
  Layout layout_;
  std::vector<char> mine_;
  std::vector<int32_t> counts_;   // [R, E]
  std::vector<Popularity> sums_;  // [L] of layers that were told of; empty: none
  std::vector<LayerEstimate> told_;
};

}  // namespace switchyard
