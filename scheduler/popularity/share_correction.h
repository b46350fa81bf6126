// What an estimate was wrong by in the last batches, added to the next one (spec/prediction.md, "Correction"):
//   share = estimate + e, clipped at 0;   after the batch  e <- e/2 + (actual - estimate)/2
//
// For a bias that lasts longer than a batch: a text of another domain than the profile's, a probe's own bias.  Works on
// shares, so that batches of different sizes correct each other; in fixed point, so that all ranks that correct the
// gathered sums alike stay alike.  One instance per layer and phase.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard {

class ShareCorrection {
 public:
  explicit ShareCorrection(int num_experts) : error_(static_cast<size_t>(num_experts)) {}

  // Corrects an estimate [E] in place; its total stays.
  void Apply(absl::Span<int64_t> estimate) const;
  // What the estimate was before Apply, and what came.  A batch of nothing changes nothing.
  void Update(absl::Span<const int64_t> estimate, absl::Span<const int64_t> actual);

 private:
  std::vector<int64_t> error_;  // [E] share in 2^-30
};

}  // namespace switchyard
