// What every rank tells the others after a layer's gate: how many of its rows each expert has, what it expects of
// coming layers, and a hash of what it decided last.
//
// One small all-gather of class all-to-all, so that its order among the exchanges is the schedule's.  Waits for the
// slowest gate of the group, which a dispatch would do, too.  Where hashes differ all ranks see it, and exchange their
// digests: the error names the ranks and the first field.  Thread-compatible.
//
// All ranks wait for it, so it is short: 18 + 6 E bytes with estimates, 10 + 2 E without.  Counts are of 16 bits; where
// one rank's do not fit, all ranks see that, and tell them again with 32.  An estimate has 16 bits an expert and a
// shift of its own, so what is told of it may be less than what was expected, by 2^-15 of its largest at most.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/per_step/decision_digest.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "scheduler/placement/route/split.h"
#include "scheduler/popularity/popularity.h"
#include "workers/comm/local/message.h"
#include "workers/moe/placement/layer_balancer.h"

namespace switchyard::moe {

class DecisionGather {
 public:
  // Of more estimates the nearest layers' are told.
  static constexpr int kMaxEstimates = 2;

  // estimates: whether messages have room for them; the same on all ranks.
  DecisionGather(int num_layers, int num_experts, bool estimates);

  // Borrowed until the next call.
  struct Reported {
    placement::RowCounts counts;                           // [R, E]
    absl::Span<const placement::LayerEstimate> estimates;  // sums over the ranks, nearest layer first
  };
  // last: digest of this rank's last decision.  Errors: InvalidArgument (an expert id outside [-1, E), with its place),
  // Internal (ranks decided differently, or tell what cannot be; the group is aborted), the communicator's.
  // REQUIRES: layer.topk_on_host is there.
  absl::StatusOr<Reported> Gather(const MoeContext& context, const LayerContext& layer,
                                  const placement::DecisionDigest& last);
  // What a rank reports, where its counts fit 16 bits.
  int64_t message_bytes() const { return layout_.bytes; }

 private:
  // Offsets in a rank's message, in bytes.
  struct Layout {
    int64_t hash = 0;        // uint64
    int64_t wide = 0;        // uint16; 1 = a count does not fit
    int64_t layers = 0;      // [kMaxEstimates] int16; -1 = no estimate
    int64_t shifts = 0;      // [kMaxEstimates] uint16
    int64_t popularity = 0;  // [kMaxEstimates, E] uint16
    int64_t counts = 0;      // [E] uint16
    int64_t bytes = 0;
  };

  absl::Status Count(const TensorView& topk_idx);
  absl::Status Pack(const LayerContext& layer, uint64_t hash);
  absl::Status PackEstimate(const placement::LayerEstimate& reported, int64_t place);
  // Of all ranks' messages.
  absl::Status Read(const MoeContext& context, const LayerContext& layer, absl::Span<const char* const> messages);
  absl::Status ReadWideCounts(const MoeContext& context, const LayerContext& layer);
  absl::Status ReadEstimates(const char* message, int rank);
  absl::Status NameMismatch(const MoeContext& context, const LayerContext& layer,
                            const placement::DecisionDigest& mine);

  const int num_layers_, num_experts_;
  const bool has_estimates_;
  Layout layout_;
  std::vector<char> mine_;
  std::vector<int32_t> own_counts_;           // [E]
  std::vector<int32_t> counts_;               // [R, E]
  std::vector<popularity::Popularity> sums_;  // [L] of layers that were told of; empty: none
  std::vector<placement::LayerEstimate> reported_;
};

}  // namespace switchyard::moe
