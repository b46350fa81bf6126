// Belady's rule against the fewest copies that there can be, found by trying all of them.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/offload/belady_policy.h"

namespace switchyard {
namespace {

constexpr int kLayers = 2, kExperts = 3, kKeys = kLayers * kExperts;

// Fewest copies to serve needs of one expert a gate, from slots that hold the keys of `held` (bits).
int FewestCopies(const NeedSequence& needs, uint32_t held) {
  std::map<uint32_t, int> fewest = {{held, 0}};
  for (const std::vector<ExpertKey>& need : needs) {
    const uint32_t bit = 1u << need[0];
    std::map<uint32_t, int> next;
    const auto reach = [&](uint32_t state, int copies) {
      const auto [at, fresh] = next.emplace(state, copies);
      if (!fresh) at->second = std::min(at->second, copies);
    };
    for (const auto& [state, copies] : fewest) {
      if ((state & bit) != 0) reach(state, copies);
      for (int victim = 0; victim < kKeys && (state & bit) == 0; ++victim) {
        if ((state >> victim & 1) != 0) reach((state & ~(1u << victim)) | bit, copies + 1);
      }
    }
    fewest = std::move(next);
  }
  int least = std::numeric_limits<int>::max();
  for (const auto& [state, copies] : fewest) least = std::min(least, copies);
  return least;
}

TEST(BeladyOptimumTest, OnDemandItCopiesAsFewAsCanBe) {
  std::mt19937 random(5);
  const std::vector<int64_t> popularity(kKeys, 1);
  for (int trial = 0; trial < 200; ++trial) {
    const OffloadShape shape = {kLayers, kExperts, 2 + trial % 3};
    NeedSequence needs;
    for (int gate = 0; gate < 14; ++gate)
      needs.push_back({static_cast<ExpertKey>(gate % kLayers * kExperts + static_cast<int>(random() % kExperts))});
    BeladyPolicy policy(shape, {.copy_ticks = 8, .chunks_per_copy = 4}, {}, &needs, popularity);
    uint32_t held = 0;
    for (const ExpertKey key : policy.InitialSlots()) held |= key == kNoExpert ? 0 : 1u << key;
    const int fewest = FewestCopies(needs, held);
    int copies = 0;
    for (int gate = 0; gate < static_cast<int>(needs.size()); ++gate) {
      std::vector<int32_t> rows(kExperts);
      rows[static_cast<size_t>(needs[static_cast<size_t>(gate)][0] % kExperts)] = 1;
      const LayerPlan plan = policy.OnGate({.layer = gate % kLayers, .rows = rows, .compute_ticks = 4}, {});
      copies += static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(), [](const PlanStep& step) {
        return step.kind == PlanStep::kCopy || step.kind == PlanStep::kPrefetch;
      }));
    }
    EXPECT_EQ(copies, fewest) << "trial " << trial << ", " << shape.num_slots << " slots";
  }
}

}  // namespace
}  // namespace switchyard
