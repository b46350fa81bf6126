// A chance that is learned as a correction: each cell of a table counts by how much needs came more often than
// was expected.  Integers only.
#pragma once

#include <cstdint>

namespace switchyard::offload {

// Levels of a chance, finer below where most experts are.
inline constexpr int kChanceLevels = 12;
// [0, kChanceLevels)  chance: [0, kChance].
int LevelOfChance(int32_t chance);

struct LearnedChance {
  int64_t more = 0;  // needs above what was expected, summed, times kChance
  int32_t seen = 0;

  // Counts a need, kChance or 0, against what was expected.  What is old fades.
  void Add(int32_t needed, int32_t expected) {
    constexpr int32_t kForgottenAt = 1 << 12;
    more += needed - expected;
    if (++seen >= kForgottenAt) *this = {more / 2, seen / 2};
  }
};

}  // namespace switchyard::offload
