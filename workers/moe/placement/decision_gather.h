// The gather after a layer's gate: each rank's rows by expert, its estimate of the next layer where the mode uses one,
// and a hash of its last decision.
//
// One small all-gather of class all-to-all, so that its order among the exchanges is the schedule's.  Where hashes
// differ, all ranks see it and exchange their digests: the error names the ranks and the first field.
// A message has 14 + 4 E bytes with an estimate, 10 + 2 E without.  Counts have 16 bits; where one rank's do not fit,
// all ranks see that and gather them again with 32.  An estimate has 16 bits an expert and a shift of its own, so that
// it loses 2^-15 of its largest at most.  Thread-compatible.
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
#include "workers/moe/layer/moe_context.h"

namespace switchyard::moe {

class DecisionGather {
 public:
  // Where there are more estimates, those of the nearest layers are sent.
  static constexpr int kMaxEstimates = 1;

  // estimates: whether messages have room for them; the same on all ranks.
  DecisionGather(int num_layers, int num_experts, bool estimates);

  // Borrowed until the next call.
  struct Reported {
    placement::RowCounts counts;                           // [R, E]
    absl::Span<const placement::LayerEstimate> estimates;  // sums over the ranks, nearest layer first
  };
  // last: digest of this rank's last decision.  Errors: InvalidArgument (an expert id outside [-1, E), with its place),
  // Internal (ranks decided differently, or send what cannot be; the group is aborted), the communicator's.
  // REQUIRES: layer.topk_on_host is there.
  absl::StatusOr<Reported> Gather(const MoeContext& context, const LayerContext& layer,
                                  const placement::DecisionDigest& last);
  // Bytes that a rank sends, where its counts fit 16 bits.
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
  // Reads all ranks' messages.
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
  std::vector<popularity::Popularity> sums_;  // [L] of the estimates; empty: none
  std::vector<placement::LayerEstimate> reported_;
};

}  // namespace switchyard::moe
