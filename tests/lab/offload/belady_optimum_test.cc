// Belady's rule against the fewest copies that there can be, found by trying all of them.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/lab/offload/belady_policy.h"
#include "tests/lab/offload/fewest_copies.h"

namespace switchyard {
namespace {

constexpr int kLayers = 2, kExperts = 3, kKeys = kLayers * kExperts;

TEST(BeladyOptimumTest, OnDemandItCopiesAsFewAsCanBe) {
  std::mt19937 random(5);
  const std::vector<int64_t> popularity(kKeys, 1);
  for (int trial = 0; trial < 200; ++trial) {
    const offload::OffloadShape shape = {kLayers, kExperts, 2 + trial % 3};
    NeedSequence needs;
    for (int gate = 0; gate < 14; ++gate)
      needs.push_back(
          {static_cast<offload::ExpertKey>(gate % kLayers * kExperts + static_cast<int>(random() % kExperts))});
    BeladyPolicy policy(shape, {.copy_ticks = 8, .chunks_per_copy = 4}, {}, &needs, popularity);
    uint32_t held = 0;
    for (const offload::ExpertKey key : policy.InitialSlots()) held |= key == offload::kNoExpert ? 0 : 1u << key;
    const int fewest = FewestCopies(needs, held, kKeys);
    int copies = 0;
    for (int gate = 0; gate < static_cast<int>(needs.size()); ++gate) {
      std::vector<int32_t> rows(kExperts);
      rows[static_cast<size_t>(needs[static_cast<size_t>(gate)][0] % kExperts)] = 1;
      const offload::LayerPlan plan = policy.OnGate({.layer = gate % kLayers, .rows = rows, .compute_ticks = 4}, {});
      copies += static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(), [](const offload::PlanStep& step) {
        return step.kind == offload::PlanStep::kCopy || step.kind == offload::PlanStep::kPrefetch;
      }));
    }
    EXPECT_EQ(copies, fewest) << "trial " << trial << ", " << shape.num_slots << " slots";
  }
}

}  // namespace
}  // namespace switchyard
