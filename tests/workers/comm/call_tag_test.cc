// The text of a collective's tag.
#include "workers/comm/core/call_tag.h"

#include <set>

#include "gtest/gtest.h"

namespace switchyard::comm {
namespace {

TEST(CallTagTest, SaysWhatACallIsFor) {
  EXPECT_EQ(CallPurpose(CallTag(CallUse::kDispatch, 3)), "for the dispatch of MoE layer 3");
  EXPECT_EQ(CallPurpose(CallTag(CallUse::kCombine, kCallLayers - 1, kCallParts - 1)),
            "for the combine of MoE layer 16383, part 16383");
  EXPECT_EQ(CallPurpose(CallTag(CallUse::kRepack, 4)), "for the repacked experts of layer 4");
  EXPECT_EQ(CallPurpose(CallTag(CallUse::kRowGather, 5)), "for the gather of rows of MoE layer 5");
  EXPECT_EQ(CallTag(CallUse::kRepack, kCallLayers + 1, kCallParts + 2), CallTag(CallUse::kRepack, 1, 2));
  EXPECT_EQ(CallPurpose(NumberedTag(CallUse::kReplicaSum, 0)), "for the sum of experts' gradients 0");
  EXPECT_EQ(CallPurpose(NumberedTag(CallUse::kGradientSum, (1 << 28) - 1)), "for the sum of gradients 268435455");
  EXPECT_EQ(CallPurpose(12), "with tag 12");
  EXPECT_EQ(CallPurpose(NumberedTag(CallUse::kLinkMeasure, 3)), "for the measuring of links, size 3");
  std::set<uint32_t> tags;
  for (int use = 1; use < static_cast<int>(CallUse::kGradientSum); ++use) {
    for (const int layer : {0, 1, 2}) {
      for (const int part : {0, 1, 2}) tags.insert(CallTag(static_cast<CallUse>(use), layer, part));
    }
  }
  EXPECT_EQ(tags.size(), 11u * 9);
}

}  // namespace
}  // namespace switchyard::comm
