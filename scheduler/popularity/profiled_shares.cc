#include "scheduler/popularity/profiled_shares.h"

#include "scheduler/popularity/popularity.h"

namespace switchyard::popularity {
namespace {

constexpr int64_t kDecodedPerExpert = 16;

// The counts of that profile of the phase which has counted most; all count the same rows.
Popularity CountedRows(const ProfileBundle& bundle, Phase phase, int layer) {
  Popularity most(static_cast<size_t>(bundle.shape.num_experts), 0);
  for (const PathProfile& profile : bundle.profiles) {
    const absl::Span<const int64_t> counts = profile.MarginalCounts(layer);
    if (profile.identity().phase != phase || TotalOf(counts) <= TotalOf(most)) continue;
    most.assign(counts.begin(), counts.end());
  }
  return most;
}

}  // namespace

std::vector<int64_t> ProfiledShares(const ProfileBundle& bundle) {
  std::vector<int64_t> shares;
  for (int layer = 0; layer < bundle.shape.num_layers; ++layer) {
    Popularity rows = CountedRows(bundle, Phase::kDecode, layer);
    if (TotalOf(rows) < kDecodedPerExpert * bundle.shape.num_experts) {
      const Popularity prompts = CountedRows(bundle, Phase::kPrefill, layer);
      for (size_t e = 0; e < rows.size(); ++e) rows[e] += prompts[e];
    }
    const Popularity scaled = ScaledTo(rows, kRow);
    shares.insert(shares.end(), scaled.begin(), scaled.end());
  }
  return shares;
}

}  // namespace switchyard::popularity
