// Which rank holds which expert: pure, the same on every rank.
//
// An expert has one or more places (rank, slot) in the ranks' lists of experts, where slots may be empty.  A token's
// place is a function of (source rank, token index), so that every rank knows it without a message.  Contiguous(E, R)
// is the start: neighbouring experts, the first ranks one more where R does not divide E.  Immutable; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/placement/placement.h"

namespace switchyard::moe {

class ExpertLayout {
 public:
  struct Place {
    int32_t rank = 0;
    int32_t slot = 0;
    bool operator==(const Place& other) const { return rank == other.rank && slot == other.slot; }
  };

  ExpertLayout() = default;
  // REQUIRES: num_experts >= 1, num_ranks >= 1.
  static ExpertLayout Contiguous(int num_experts, int num_ranks);
  // Ranks are the placement's devices, empty slots stay.  REQUIRES: CheckPlacement(placement) is OK.
  static ExpertLayout FromPlacement(const placement::Placement& placement);
  // residents[r]: the experts of rank r, by slot, kEmptySlot = none.  REQUIRES: every expert of [0, num_experts) is on
  // at least one rank, at most once on each.
  static ExpertLayout FromResidents(int num_experts, absl::Span<const std::vector<int32_t>> residents);

  int num_experts() const { return static_cast<int>(place_offsets_.size()) - 1; }
  int num_ranks() const { return static_cast<int>(residents_.size()); }
  // The same experts in the same slots.
  bool operator==(const ExpertLayout& other) const { return residents_ == other.residents_; }
  // The experts of a rank, by slot; kEmptySlot = none.
  absl::Span<const int32_t> Residents(int rank) const { return residents_[rank]; }
  absl::Span<const Place> Places(int expert) const {
    return absl::MakeSpan(places_).subspan(place_offsets_[expert], place_offsets_[expert + 1] - place_offsets_[expert]);
  }
  // Its slot on that rank; -1 = it is not there.
  int32_t SlotOn(int rank, int expert) const;
  // The place for a row of token `token_idx` of rank `source_rank`: on that rank if possible, else places take turns.
  Place PlaceOf(int expert, int source_rank, int64_t token_idx) const;

 private:
  std::vector<std::vector<int32_t>> residents_;  // [R][slots]
  std::vector<int32_t> place_offsets_;           // [E + 1]
  std::vector<Place> places_;                    // by expert, then rank
};

}  // namespace switchyard::moe
