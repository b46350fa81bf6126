#include "workers/moe/dispatch/expert_layout.h"

#include "scheduler/base/check.h"

namespace switchyard::moe {

ExpertLayout ExpertLayout::Contiguous(int num_experts, int num_ranks) {
  placement::Placement placement = placement::ContiguousPlacement(num_experts, num_ranks, 0);
  // Ranks that have fewer experts than others have fewer slots, too.
  for (std::vector<int32_t>& slots : placement.slots) std::erase(slots, placement::kEmptySlot);
  return FromPlacement(placement);
}

ExpertLayout ExpertLayout::FromPlacement(const placement::Placement& placement) {
  return FromResidents(placement.num_experts, placement.slots);
}

ExpertLayout ExpertLayout::FromResidents(int num_experts, absl::Span<const std::vector<int32_t>> residents) {
  ExpertLayout layout;
  layout.residents_.assign(residents.begin(), residents.end());
  std::vector<int32_t>& offsets = layout.place_offsets_;
  offsets.assign(static_cast<size_t>(num_experts) + 1, 0);
  for (const std::vector<int32_t>& slots : residents) {
    for (const int32_t expert : slots) {
      if (expert == placement::kEmptySlot) continue;
      SY_CHECK_GE(expert, 0);
      SY_CHECK_LT(expert, num_experts);
      ++offsets[static_cast<size_t>(expert) + 1];
    }
  }
  for (int expert = 0; expert < num_experts; ++expert) {
    SY_CHECK_GE(offsets[static_cast<size_t>(expert) + 1], 1);  // it is somewhere
    offsets[static_cast<size_t>(expert) + 1] += offsets[static_cast<size_t>(expert)];
  }
  layout.places_.resize(static_cast<size_t>(offsets.back()));
  std::vector<int32_t> next(offsets.begin(), offsets.end() - 1);
  for (int32_t rank = 0; rank < static_cast<int32_t>(residents.size()); ++rank) {
    for (int32_t slot = 0; slot < static_cast<int32_t>(residents[rank].size()); ++slot) {
      const int32_t expert = residents[rank][slot];
      if (expert == placement::kEmptySlot) continue;
      const int32_t at = next[expert]++;
      SY_CHECK(at == offsets[expert] || layout.places_[at - 1].rank != rank);  // twice on one rank
      layout.places_[at] = {rank, slot};
    }
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

}  // namespace switchyard::moe
