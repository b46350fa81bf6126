// Which experts a layer's tokens choose: uniformly at random, the same numbers as in peers.py, so that peers
// compute the same rows.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard {

struct BenchRouting {
  std::vector<int32_t> idx;   // [T, K] distinct in a row
  std::vector<float> weight;  // [T, K] of sum 1 a row
  int64_t experts_touched = 0;
  uint32_t checksum = 0;  // of idx
};
BenchRouting MakeRouting(int64_t tokens, int64_t experts, int64_t top_k, uint64_t set);

}  // namespace switchyard
