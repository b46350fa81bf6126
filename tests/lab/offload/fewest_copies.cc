#include "tests/lab/offload/fewest_copies.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace switchyard {

int FewestCopies(const NeedSequence& needs, uint32_t held, int num_keys) {
  std::map<uint32_t, int> fewest = {{held, 0}};
  for (const std::vector<offload::ExpertKey>& need : needs) {
    const uint32_t bit = 1u << need[0];
    std::map<uint32_t, int> next;
    const auto reach = [&](uint32_t state, int copies) {
      const auto [at, fresh] = next.emplace(state, copies);
      if (!fresh) at->second = std::min(at->second, copies);
    };
    for (const auto& [state, copies] : fewest) {
      if ((state & bit) != 0) reach(state, copies);
      for (int victim = 0; victim < num_keys && (state & bit) == 0; ++victim) {
        if ((state >> victim & 1) != 0) reach((state & ~(1u << victim)) | bit, copies + 1);
      }
    }
    fewest = std::move(next);
  }
  int least = std::numeric_limits<int>::max();
  for (const auto& [state, copies] : fewest) least = std::min(least, copies);
  return least;
}

}  // namespace switchyard
