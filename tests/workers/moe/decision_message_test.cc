// Messages and digests of decisions: read back as they were made, and the field named where ranks decided
// differently.
#include "workers/moe/placement/decision_message.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/moe/decided_group.h"

namespace switchyard::moe {
namespace {

using test::DecidedGroup;
using test::GroupResult;
using testing::HasSubstr;

// One bit of what the last rank receives from rank 0: that rank decides otherwise, and the next gather shows it.
TEST(DivergenceTest, TheFirstFieldThatDiffersIsNamed) {
  const test::DecidedGroup group;
  constexpr int64_t kCountsAt = 8 + 2;
  const test::GroupResult result =
      group.Run({.rank_rows = {24, 0, 0}, .faults = {.corrupt_gather = 4, .corrupt_byte = kCountsAt + 2 * 7}});
  int named = 0;
  for (const absl::Status& status : result.statuses) {
    EXPECT_FALSE(status.ok());
    if (!absl::IsInternal(status)) continue;
    ++named;
    EXPECT_THAT(status.message(), HasSubstr("ranks had decided differently"));
    EXPECT_THAT(status.message(), HasSubstr("counts: 0x"));
    EXPECT_THAT(status.message(), HasSubstr("on rank 0"));
    EXPECT_THAT(status.message(), HasSubstr("on rank 2"));
  }
  EXPECT_GE(named, 1);
}

TEST(DecisionMessageTest, SaysWhatItWasMadeFrom) {
  const std::vector<int32_t> rows = {9, 0, 3, 1, 4, 0, 0, 8};
  placement::PolicyShape shape{.mode = placement::PlacementMode::kLina,
                               .residents = {placement::ContiguousPlacement(4, 2, 1)}};
  auto policy = *placement::MakePlacementPolicy(shape);
  const popularity::Popularity popularity = {5 * popularity::kRow, 0, 0, popularity::kRow};
  const placement::LayerEstimate estimate{.layer = 0, .popularity = popularity};
  const placement::LayerDecision decision = policy->Decide({.layer = 0,
                                                            .counts = {.num_ranks = 2, .num_experts = 4, .rows = rows},
                                                            .estimates = absl::MakeConstSpan(&estimate, 1)});
  ASSERT_FALSE(decision.prefetch[0].changes.empty());
  const std::vector<int32_t> words = EncodeDecision(decision);
  const DecisionBounds bounds = {.num_layers = 1, .num_experts = 4, .num_ranks = 2};
  const auto decoded = DecodeDecision(words, bounds);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->split, decision.split);
  EXPECT_EQ(decoded->split.loads(), decision.split.loads());
  EXPECT_EQ(decoded->prefetch[0].changes, decision.prefetch[0].changes);
  EXPECT_EQ(placement::DescribeMismatch(DigestOfSaid(*decoded), 0, DigestOfSaid(decision), 1), "");
  // Cut short anywhere, or with any word out of range, it is refused or says something else, and nothing is read
  // beyond.
  for (size_t length = 0; length < words.size(); ++length) {
    EXPECT_FALSE(DecodeDecision(absl::MakeConstSpan(words).first(length), bounds).ok()) << length;
  }
  for (size_t at = 0; at < words.size(); ++at) {
    std::vector<int32_t> broken = words;
    broken[at] ^= 1 << 30;
    const auto other = DecodeDecision(broken, bounds);
    EXPECT_FALSE(other.ok() && DigestOfSaid(*other) == DigestOfSaid(decision)) << at;
  }
}

}  // namespace
}  // namespace switchyard::moe
