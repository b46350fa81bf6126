#include "scheduler/popularity/profiled_shares.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/popularity/popularity.h"
#include "tests/scheduler/popularity/small_batch.h"

namespace switchyard::popularity {
namespace {

using testing::ElementsAre;

constexpr RoutingShape kShape{.num_layers = 2, .num_experts = 4, .top_k = 1};

PathProfile Counted(Phase phase, ContextKind context, int times, const std::vector<std::vector<int16_t>>& tokens) {
  PathProfile profile({.model = "weights",
                       .shape = kShape,
                       .phase = phase,
                       .context = context,
                       .path_length = context == ContextKind::kToken ? 1 : 3,
                       .num_choices = 1},
                      {});
  SmallBatch batch(kShape, tokens);
  for (int i = 0; i < times; ++i) {
    // The second layer is counted on the first batch only.
    for (int layer = 0; layer < (i == 0 ? 2 : 1); ++layer) profile.Observe(batch.View(), layer);
  }
  return profile;
}

TEST(ProfiledSharesTest, DecodedRowsWhereEnoughWereCountedElseAll) {
  ProfileBundle bundle{.model = "weights", .shape = kShape, .hidden = 0, .profiles = {}, .maps = {}};
  EXPECT_THAT(ProfiledShares(bundle), testing::Each(kRow / 4));
  bundle.profiles = {Counted(Phase::kPrefill, ContextKind::kPath, 16, {{0, 1}, {0, 1}, {0, 1}, {1, 1}}),
                     // Few rows of what the next one counts, too.
                     Counted(Phase::kDecode, ContextKind::kPath, 1, {{2, 2}, {2, 2}, {3, 2}, {3, 2}})};
  // Of the first layer 48 and 16 prompts' rows, and 4 that were decoded.
  EXPECT_THAT(ProfiledShares(bundle), ElementsAre(kRow * 48 / 68, kRow * 16 / 68 + 1, kRow * 2 / 68 + 1, kRow * 2 / 68,
                                                  0, kRow / 2, kRow / 2, 0));
  bundle.profiles.push_back(Counted(Phase::kDecode, ContextKind::kPath, 16, {{2, 2}, {2, 2}, {2, 2}, {3, 2}}));
  EXPECT_THAT(ProfiledShares(bundle), ElementsAre(0, 0, kRow * 3 / 4, kRow / 4, 0, kRow / 2, kRow / 2, 0));
}

}  // namespace
}  // namespace switchyard::popularity
