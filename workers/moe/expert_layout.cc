#include "workers/moe/expert_layout.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard {

ExpertLayout ExpertLayout::Contiguous(int num_experts, int num_ranks) {
  SY_CHECK_GE(num_experts, 1);
  SY_CHECK_GE(num_ranks, 1);
  const int per_rank = (num_experts + num_ranks - 1) / num_ranks;
  std::vector<std::vector<int32_t>> residents(num_ranks);
  for (int expert = 0; expert < num_experts; ++expert) residents[expert / per_rank].push_back(expert);
  return FromResidents(num_experts, residents, 0);
}

ExpertLayout ExpertLayout::FromResidents(int num_experts, absl::Span<const std::vector<int32_t>> residents,
                                         int64_t epoch) {
  ExpertLayout layout;
  layout.epoch_ = epoch;
  layout.residents_.assign(residents.begin(), residents.end());
  std::vector<std::vector<Place>> places(num_experts);
  for (int rank = 0; rank < static_cast<int>(residents.size()); ++rank) {
    for (int slot = 0; slot < static_cast<int>(residents[rank].size()); ++slot) {
      const int expert = residents[rank][slot];
      SY_CHECK_GE(expert, 0);
      SY_CHECK_LT(expert, num_experts);
      SY_CHECK(places[expert].empty() || places[expert].back().rank != rank);  // twice on one rank
      places[expert].push_back({rank, slot});
    }
  }
  layout.place_offsets_.push_back(0);
  for (const std::vector<Place>& of_expert : places) {
    SY_CHECK(!of_expert.empty());
    layout.places_.insert(layout.places_.end(), of_expert.begin(), of_expert.end());
    layout.place_offsets_.push_back(static_cast<int32_t>(layout.places_.size()));
  }
  return layout;
}

int32_t ExpertLayout::SlotOn(int rank, int expert) const {
  for (const Place& place : Places(expert)) {
    if (place.rank == rank) return place.slot;
  }
  return -1;
}

ExpertLayout::Place ExpertLayout::PlaceOf(int expert, int source_rank, int64_t token_idx) const {
  const absl::Span<const Place> places = Places(expert);
  if (places.size() == 1) return places[0];
  for (const Place& place : places) {
    if (place.rank == source_rank) return place;
  }
  // Ranks begin at different replicas, so that their first tokens do not meet at the same one.
  return places[static_cast<size_t>(source_rank + token_idx) % places.size()];
}

}  // namespace switchyard
