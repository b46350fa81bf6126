#include "scheduler/offload/forecast/learned_chance.h"

#include <algorithm>
#include <iterator>

namespace switchyard::offload {

int LevelOfChance(int32_t chance) {
  static constexpr int32_t kBounds[kChanceLevels - 1] = {655,   1966,  3932,  6554,  9830, 14418,
                                                         19661, 26214, 34079, 43254, 55706};
  return static_cast<int>(std::upper_bound(std::begin(kBounds), std::end(kBounds), chance) - std::begin(kBounds));
}

}  // namespace switchyard::offload
