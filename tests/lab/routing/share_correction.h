// Adds to an estimate what it was wrong by in the last batches (scheduler/PAPERS.md, "Correction"):
//   share = estimate + e, clipped at 0;   after a batch of n rows  e <- e + g (actual - estimate - e)
//   g = n / (2 (n + 1024)): that page's 1/2 for many rows; what a batch of few rows misses is mostly chance
//
// For a bias that lasts longer than a batch: a text of another domain than the profile's, a probe's own bias.  Works on
// shares, so that batches of different sizes correct each other; in fixed point, so that ranks stay alike.  One
// instance per layer and phase.
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
  // estimate: before Apply; actual: what came, over num_rows rows.  A batch of nothing changes nothing.
  void Update(absl::Span<const int64_t> estimate, absl::Span<const int64_t> actual, int64_t num_rows);

 private:
  std::vector<int64_t> error_;  // [E] share in 2^-30
};

}  // namespace switchyard
