// Shared by placement tests: seeded shapes, and plain slow answers to compare with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "scheduler/placement/placement.h"

namespace switchyard::placement_drill {

// Every expert somewhere, then as many further replicas at random as the slots hold.
inline placement::Placement RandomPlacement(std::mt19937_64& rng, int num_experts, int num_devices,
                                            int slots_per_device) {
  placement::Placement placement{.num_experts = num_experts, .slots = {}};
  placement.slots.assign(num_devices, {});
  for (int expert = 0; expert < num_experts; ++expert) {
    std::vector<int32_t>* device = nullptr;
    do {
      device = &placement.slots[rng() % num_devices];
    } while (static_cast<int>(device->size()) >= slots_per_device);
    device->push_back(expert);
  }
  for (std::vector<int32_t>& device : placement.slots) {
    while (static_cast<int>(device.size()) < slots_per_device) {
      const auto expert = static_cast<int32_t>(rng() % num_experts);
      const bool twice = std::find(device.begin(), device.end(), expert) != device.end();
      device.push_back(twice ? placement::kEmptySlot : expert);
    }
  }
  return placement;
}

inline std::vector<int32_t> RandomCounts(std::mt19937_64& rng, int num_ranks, int num_experts, int most) {
  std::vector<int32_t> counts(static_cast<size_t>(num_ranks) * num_experts);
  for (int32_t& count : counts) count = static_cast<int32_t>(rng() % (most + 1));
  return counts;
}

// Rows by Zipf's law over a seeded order of the experts.
inline std::vector<int64_t> ZipfRows(std::mt19937_64& rng, int num_experts, double exponent, int64_t total) {
  std::vector<int> rank(num_experts);
  std::iota(rank.begin(), rank.end(), 1);
  std::shuffle(rank.begin(), rank.end(), rng);
  std::vector<int64_t> rows(num_experts);
  double sum = 0;
  for (const int r : rank) sum += std::pow(r, -exponent);
  for (int e = 0; e < num_experts; ++e) {
    rows[e] = static_cast<int64_t>(std::pow(rank[e], -exponent) / sum * static_cast<double>(total));
  }
  return rows;
}

// The least rows of the busiest device, by the theorem and not by flow: some set of devices has to take all rows of the
// experts that it alone holds.  2^R sets.
inline int64_t LeastBusiest(const placement::Placement& placement, const std::vector<int64_t>& rows) {
  const int num_devices = placement.num_devices();
  std::vector<unsigned> mask(rows.size(), 0);
  for (int device = 0; device < num_devices; ++device) {
    for (const int32_t expert : placement.slots[device]) {
      if (expert != placement::kEmptySlot) mask[expert] |= 1u << device;
    }
  }
  int64_t least = 0;
  for (unsigned set = 1; set < (1u << num_devices); ++set) {
    int64_t inside = 0;
    for (size_t e = 0; e < rows.size(); ++e) inside += (mask[e] & ~set) == 0 ? rows[e] : 0;
    const int64_t size = __builtin_popcount(set);
    least = std::max(least, (inside + size - 1) / size);
  }
  return least;
}

// Experts that a device holds in `to` and not in `from`, over all devices: what has to be copied.
// REQUIRES: the same number of devices.
inline int64_t CountArrivals(const placement::Placement& from, const placement::Placement& to) {
  int64_t arrivals = 0;
  for (int device = 0; device < to.num_devices(); ++device) {
    for (const int32_t expert : to.slots[device])
      arrivals += expert != placement::kEmptySlot && !from.Holds(device, expert);
  }
  return arrivals;
}

}  // namespace switchyard::placement_drill
