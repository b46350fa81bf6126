#include "tests/bench/gpu/routing.h"

#include <algorithm>
#include <numeric>

#include "scheduler/base/split_mix.h"

namespace switchyard {

BenchRouting MakeRouting(int64_t tokens, int64_t experts, int64_t top_k, uint64_t set) {
  BenchRouting routing;
  uint64_t state = set * 1000003 + static_cast<uint64_t>(tokens);
  std::vector<int32_t> ids(static_cast<size_t>(experts));
  std::vector<char> touched(static_cast<size_t>(experts), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    std::iota(ids.begin(), ids.end(), 0);
    for (int64_t k = 0; k < top_k; ++k) {
      state = SplitMix(state);
      const auto other = k + static_cast<int64_t>(state % static_cast<uint64_t>(experts - k));
      std::swap(ids[k], ids[other]);
      routing.idx.push_back(ids[k]);
      routing.checksum = routing.checksum * 31 + static_cast<uint32_t>(ids[k]);
      touched[ids[k]] = 1;
      // Falling, as a router's are: 2 (K - k) / (K (K + 1)).
      routing.weight.push_back(2.0f * static_cast<float>(top_k - k) / static_cast<float>(top_k * (top_k + 1)));
    }
  }
  routing.experts_touched = std::count(touched.begin(), touched.end(), 1);
  return routing;
}

}  // namespace switchyard
