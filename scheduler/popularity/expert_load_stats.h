// How often each expert of each MoE layer was chosen lately, prefill and decode apart, from the counts of every step:
// for people to look at.
//
// Counts are halved at fixed numbers of tokens, not by a clock, so that old traffic fades and the same results give the
// same statistics.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/popularity/path_profile.h"
#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard::popularity {

class ExpertLoadStats {
 public:
  // Rows of one expert, layer and step; with more a sum could leave its type.
  static constexpr int64_t kMaxCount = int64_t{1} << 40;

  // REQUIRES: the shape's numbers and halve_after_tokens are >= 1.
  ExpertLoadStats(const RoutingShape& shape, int64_t halve_after_tokens);

  const RoutingShape& shape() const { return shape_; }
  int64_t halve_after_tokens() const { return halve_after_tokens_; }
  // counts [L * E] rows of one step, of tokens of one phase.  Adds nothing on an error.
  // InvalidArgument: of other sizes, a count that is negative or above kMaxCount, layers that differ in their sum.
  absl::Status Add(Phase phase, absl::Span<const int64_t> counts);

  // [E] rows, halved ones rounded down.
  absl::Span<const int64_t> Counts(Phase phase, int layer) const;
  // Tokens that the counts stand for.
  int64_t num_tokens(Phase phase) const { return of(phase).tokens; }

 private:
  struct PhaseCounts {
    std::vector<int64_t> counts;  // [L * E]
    int64_t tokens = 0;           // since the beginning, halved as the counts
    int64_t since_halving = 0;
  };
  const PhaseCounts& of(Phase phase) const { return phases_[static_cast<size_t>(phase)]; }

  RoutingShape shape_;
  int64_t halve_after_tokens_;
  PhaseCounts phases_[2];
};

// The imbalance of one layer's counts [E]: the busiest expert's rows over the mean, 1 = all alike; 0 if there are none.
double BusiestOverMean(absl::Span<const int64_t> counts);

}  // namespace switchyard::popularity
