#include "scheduler/offload/expert_cache.h"

#include "gtest/gtest.h"

namespace switchyard::offload {
namespace {

constexpr OffloadShape kShape = {2, 4, 2};

TEST(ExpertCacheTest, ACopyEvictsWhatTheSlotHeld) {
  ExpertCache cache(kShape);
  cache.StartCopy(5, 0, true);
  cache.Arrive(5);
  cache.StartCopy(6, 0, false);
  EXPECT_EQ(cache.state(5), ExpertState::kHostOnly);
  EXPECT_FALSE(cache.Holds(5));
  EXPECT_EQ(cache.KeyIn(0), 6);
  EXPECT_EQ(cache.KeyIn(1), kNoExpert);
}

TEST(ExpertCacheTest, DemandedExpertsStay) {
  ExpertCache cache(kShape);
  cache.StartCopy(5, 0, true);
  EXPECT_DEATH(cache.Evict(5), "expert 5: demanded to host only");
  cache.Arrive(5);
  cache.Evict(5);
  EXPECT_FALSE(cache.Holds(5));
}

}  // namespace
}  // namespace switchyard::offload
