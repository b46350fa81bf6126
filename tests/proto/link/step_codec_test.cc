// Plans and results of steps on the worker link, beyond round_trip_test.cc.
#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "proto/link/step_plan_codec.h"
#include "proto/link/step_result_codec.h"
#include "tests/proto/link/round_trip.h"

namespace switchyard::link {
namespace {

using test::OverTheWire;

TEST(StepCodec, ExpertPathsThatNobodyAskedForAreNotReported) {
  batching::StepPlan plan, head;
  absl::Duration limit;
  plan.ranks.resize(1);
  plan.ranks[0].items.resize(2);
  plan.ranks[0].items[0].init.emplace();
  plan.ranks[0].items[1].init.emplace();
  plan.ranks[0].items[1].init->sampling.expert_paths_from = 0;
  const batching::RankPlan part = FromProto(test::OverTheWire(ToProto(plan, 0, absl::Seconds(1))), &head, &limit);
  EXPECT_EQ(part.items[0].init->sampling.expert_paths_from, -1);
  EXPECT_EQ(part.items[1].init->sampling.expert_paths_from, 0);
}

TEST(StepCodec, MasksTravelInBothForms) {
  batching::StepMasks masks, head;
  masks.step = int64_t{1} << 40;
  masks.group_epoch = 3;
  masks.ranks.resize(2);
  masks.ranks[0].items.resize(1);  // of the other rank: must not arrive
  std::vector<batching::ItemMask>& items = masks.ranks[1].items;
  items.push_back({.item = 4, .mask = {.ids = {1, 5, 70000}, .bits = {}}});
  items.push_back({.item = 5, .mask = {.ids = {}, .bits = std::string("\x01\0\xff", 3)}});
  items.push_back({.item = 9, .mask = {}});
  EXPECT_EQ(FromProto(test::OverTheWire(ToProto(masks, 1)), &head), masks.ranks[1]);
  EXPECT_EQ(head.step, masks.step);
  EXPECT_EQ(head.group_epoch, 3);
}

TEST(StepCodec, APlanSaysHowLongToWait) {
  batching::StepPlan plan;
  plan.ranks.resize(2);
  EXPECT_EQ(ToProto(plan, 1, absl::Milliseconds(1500)).timeout_ms(), 1500);
  EXPECT_EQ(ToProto(plan, 1, absl::Microseconds(1)).timeout_ms(), 1) << "0 would mean: at once";
}

// 0 … count-1 as positions, each with two more entries.
std::vector<batching::PositionLogprobs> Positions(int count, int first) {
  std::vector<batching::PositionLogprobs> out(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    out[i].chosen = {first + i, -1.0f * static_cast<float>(i), 3};
    out[i].top = {{1, -0.5f, 1}, {2, -0.75f, 2}};
  }
  return out;
}

TEST(StepCodec, ALongResultGoesInPartsAndComesTogether) {
  batching::StepPlan head;
  head.step = 9;
  head.group_epoch = 4;
  batching::RankResult sent;
  sent.items.resize(3);
  sent.items[0].prompt_logprobs = Positions(100, 1000);
  sent.items[2].prompt_logprobs = Positions(7, 2000);
  sent.items[2].logprobs = Positions(30, 3000);
  sent.items[2].tokens = {7};
  sent.items[1].expert_paths.resize(1000);  // 125 entries
  std::iota(sent.items[1].expert_paths.begin(), sent.items[1].expert_paths.end(), int16_t{-1});
  EXPECT_TRUE(CutIntoParts(head, &sent, 137 * 3 + 125).empty()) << "what fits goes in one message";
  const std::vector<v1::StepPart> parts = CutIntoParts(head, &sent, 60);
  EXPECT_EQ(parts.size(), 5u + 3u + 2u + 1u);
  batching::RankResult in = FromProto(test::OverTheWire(ToProto(head, sent)));
  ASSERT_EQ(in.items.size(), 3u);
  for (const batching::ItemResult& item : in.items) {
    EXPECT_TRUE(item.logprobs.empty() && item.prompt_logprobs.empty() && item.expert_paths.empty());
  }
  for (const v1::StepPart& part : parts) {
    EXPECT_EQ(part.step(), 9);
    EXPECT_EQ(part.group_epoch(), 4);
    EXPECT_LE(part.logprobs_size() + part.prompt_logprobs_size(), 20);
    EXPECT_LE(part.expert_paths().size(), 60u * 16);
    EXPECT_TRUE(AddPart(test::OverTheWire(part), &in));
  }
  ASSERT_EQ(in.items[0].prompt_logprobs.size(), 100u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(in.items[0].prompt_logprobs[i].chosen.token, 1000 + i);
    EXPECT_EQ(in.items[0].prompt_logprobs[i].top.size(), 2u);
  }
  ASSERT_EQ(in.items[2].logprobs.size(), 30u);
  EXPECT_EQ(in.items[2].logprobs[29].chosen.token, 3029);
  ASSERT_EQ(in.items[2].prompt_logprobs.size(), 7u);
  EXPECT_EQ(in.items[2].prompt_logprobs[6].chosen.token, 2006);
  EXPECT_TRUE(in.items[1].logprobs.empty());
  std::vector<int16_t> paths(1000);
  std::iota(paths.begin(), paths.end(), int16_t{-1});
  EXPECT_EQ(in.items[1].expert_paths, paths);
}

TEST(StepCodec, APartOfNoItemIsLeftOut) {
  v1::StepPart part;
  part.add_logprobs();
  batching::RankResult result;
  EXPECT_FALSE(AddPart(part, &result));
  result.items.resize(1);
  EXPECT_TRUE(AddPart(part, &result));
  part.set_item(-1);
  EXPECT_FALSE(AddPart(part, &result));
}

TEST(StepCodec, MalformedResultsAreReadAsFarAsTheyGo) {
  v1::StepResult message;
  message.add_items()->set_expert_paths("abc");  // half a number too many
  message.mutable_items(0)->set_status(77);
  const batching::RankResult in = FromProto(message);
  EXPECT_EQ(in.items.at(0).expert_paths.size(), 1u);
  EXPECT_EQ(in.items[0].status, batching::ItemStatus::kNonFinite) << "an unknown status is no success";
}

}  // namespace
}  // namespace switchyard::link
