// One rank's experts by hand: what is where, late copies that are waited for, and copies that fail.
#include "workers/moe/placement/replicated_experts.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/moe/replicated_experts_fixture.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using testing::HasSubstr;

using test::ReplicatedExpertsTest;

TEST_F(ReplicatedExpertsTest, FillsAndFillsAnewWithWhatIsMissing) {
  Make(6);
  ASSERT_TRUE(Fill({{0, 1, placement::kEmptySlot}, {2, 3, 4}}).ok());
  EXPECT_EQ(*Run(0, {1, placement::kEmptySlot, 0}), "1 0");
  EXPECT_EQ(*Run(1, {2, 3, 4}), "2 3 4");
  EXPECT_EQ(Copies(CopyReason::kFill), 5);
  ASSERT_TRUE(Fill({{0, 5, 6}, {2, 3, placement::kEmptySlot}}).ok());
  EXPECT_EQ(Copies(CopyReason::kFill), 7);
  EXPECT_EQ(*Run(0, {0, 5, 6}), "0 5 6");
  EXPECT_TRUE(absl::IsNotFound(Run(1, {4}).status()));
  EXPECT_EQ(experts_->counters().late, 1) << "what never began to come is none, but it was asked for";
  EXPECT_TRUE(Run(0, {placement::kEmptySlot})->empty());
}

TEST_F(ReplicatedExpertsTest, WhatStandsStaysUntilItIsFilledAnew) {
  Make(4);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  ThreadPool pool(1);
  const Stream stream = Stream::OnCpu(&pool);
  EXPECT_EQ(experts_->standing(1), nullptr);
  const auto check = [&](const std::vector<int32_t>& experts) {
    ASSERT_TRUE(experts_->Stand(stream, {{0, 1}, experts}).ok());
    const ops::WeightGroup gate_up = experts_->standing(1)->gate_up.group();
    ASSERT_EQ(gate_up.size(), 2);
    ASSERT_EQ(experts_->standing(1)->down.group().size(), 2);
    for (int64_t i = 0; i < 2; ++i) {
      EXPECT_EQ(std::memcmp(gate_up[i]->data(), Bytes(1, experts[static_cast<size_t>(i)]),
                            static_cast<size_t>(gate_up[i]->bytes())),
                0);
    }
  };
  check({2, 3});
  EXPECT_TRUE(absl::IsFailedPrecondition(experts_->Replace(1, 3, 7, CopyReason::kDemand)));
  ASSERT_TRUE(Fill({{0, 1}, {6, 7}}).ok());
  EXPECT_EQ(experts_->standing(1), nullptr);
  check({6, 7});
  EXPECT_TRUE(absl::IsNotFound(experts_->Stand(stream, {{4}, {6}})));
}

TEST_F(ReplicatedExpertsTest, FillCanBeStopped) {
  Make(4);
  copies_.Hold();
  const absl::Status stopped =
      experts_->Fill({{0, 1}, {2, 3}}, test::Soon(), [](int64_t done, int64_t total) { return done > total; });
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  copies_.AllowAll();
}

TEST_F(ReplicatedExpertsTest, ALateCopyIsWaitedFor) {
  Make(4);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  copies_.Hold();
  ASSERT_TRUE(experts_->Replace(0, 1, 7, CopyReason::kPrefetch).ok());
  ASSERT_TRUE(copies_.AwaitBegun(4 * 4 + 1));
  const absl::Status late = Run(0, {0, 7}, absl::Now() + absl::Milliseconds(5)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(computed_, "0") << "what is there does not wait for the late one";
  copies_.AllowAll();
  EXPECT_EQ(*Run(0, {0, 7}), "0 7");
  EXPECT_GE(experts_->counters().late, 1);
  EXPECT_GT(experts_->counters().wait_seconds, 0);
  EXPECT_EQ(Copies(CopyReason::kPrefetch), 1);
}

TEST_F(ReplicatedExpertsTest, WhatIsStillOnItsWayCanBeReplaced) {
  Make(4);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  copies_.Delay(3, absl::Microseconds(300));
  // Each before the one before has arrived: it is given up, a prefetch as well as demand.
  for (int round = 0; round < 30; ++round) {
    const CopyReason reason = round % 3 == 0 ? CopyReason::kDemand : CopyReason::kPrefetch;
    const int32_t before = round % 4 == 0 ? (round == 0 ? 1 : 7) : 3 + round % 4, now = 3 + (round + 1) % 4;
    ASSERT_TRUE(experts_->Replace(0, before, now == 3 ? 7 : now, reason).ok()) << round;
  }
  EXPECT_EQ(*Run(0, {0, 5}), "0 5");
}

// Also on demand, and on a link that stands still.
TEST_F(ReplicatedExpertsTest, WhatNobodyNeedsAnyMoreHoldsNobodyUp) {
  Make(4);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  copies_.Hold();
  ASSERT_TRUE(experts_->Replace(0, 1, 7, CopyReason::kDemand).ok());
  ASSERT_TRUE(copies_.AwaitBegun(4 * 4 + 1));
  ASSERT_TRUE(experts_->Replace(0, 7, 5, CopyReason::kDemand).ok()) << "it waited for what cannot end yet";
  copies_.AllowAll();
  EXPECT_EQ(*Run(0, {0, 5}), "0 5");
  EXPECT_TRUE(absl::IsNotFound(Run(0, {7}).status()));
}

// A group begins while copies of the one before are still under way: it does not wait silently for them.
TEST_F(ReplicatedExpertsTest, FillReportsHowFarItIsWhileOldCopiesEnd) {
  Make(4);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  copies_.Hold();
  ASSERT_TRUE(experts_->Replace(0, 1, 7, CopyReason::kDemand).ok());
  ASSERT_TRUE(copies_.AwaitBegun(4 * 4 + 1));
  int reported = 0;
  ASSERT_TRUE(experts_
                  ->Fill({{0, 7}, {2, 4}}, test::Soon(),
                         [&](int64_t done, int64_t total) {
                           EXPECT_LE(done, total);
                           if (++reported == 1) copies_.AllowAll();
                           return true;
                         })
                  .ok());
  EXPECT_GE(reported, 1);
  EXPECT_EQ(*Run(0, {0, 7}), "0 7");
  EXPECT_EQ(*Run(1, {2, 4}), "2 4");
}

TEST_F(ReplicatedExpertsTest, ARowForAnEmptySlotIsRefused) {
  Make(4);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  const std::vector<int32_t> experts = {0, placement::kEmptySlot}, offsets = {0, 1, 3};
  const absl::Status status =
      experts_->RunLayer({.deadline = test::Soon()}, {.index = 0}, {.experts = experts, .offsets = offsets},
                         [](const ops::WeightGroup&, const ops::WeightGroup&) { return absl::OkStatus(); });
  EXPECT_THAT(status.message(), HasSubstr("2 rows of MoE layer 0 came for slot 1, which is empty"));
}

TEST_F(ReplicatedExpertsTest, ACopyThatFailedIsTriedOnceMoreByTheLayerThatNeedsIt) {
  Make(5);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  copies_.FailAt({0, 7}, bytes_ / 2, absl::DataLossError("page is gone"));
  ASSERT_TRUE(experts_->Replace(0, 1, 7, CopyReason::kPrefetch).ok());
  for (const absl::Time end = test::Soon(); experts_->counters().failed == 0 && absl::Now() < end;) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(Run(0, {0, 7}).status(), absl::DataLossError("page is gone"));
  EXPECT_EQ(experts_->counters().failed, 2);
  copies_.Heal();
  EXPECT_EQ(*Run(0, {0, 7}), "0 7");
}

TEST_F(ReplicatedExpertsTest, ACopyThatFailsWhileOthersComputeIsTriedOnceMore) {
  Make(5);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  copies_.Hold();
  copies_.FailAt({0, 7}, bytes_ / 2, absl::DataLossError("page is gone"));
  ASSERT_TRUE(experts_->Replace(0, 1, 7, CopyReason::kDemand).ok());
  on_compute_ = [&] {
    if (computed_ != "0") return;
    copies_.AllowAll();
    for (const absl::Time end = test::Soon(); experts_->counters().failed == 0 && absl::Now() < end;) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    copies_.Heal();
  };
  EXPECT_EQ(*Run(0, {0, 7}), "0 7");
  EXPECT_EQ(experts_->counters().failed, 1);
}

TEST_F(ReplicatedExpertsTest, AGroupDoesNotBeginWithoutAnExpertThatCouldNotBeCopied) {
  Make(5);
  copies_.FailAt({1, 3}, bytes_ / 2, absl::DataLossError("page is gone"));
  EXPECT_EQ(Fill({{0, 1}, {2, 3}}), absl::DataLossError("page is gone"));
  copies_.Heal();
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  EXPECT_EQ(*Run(1, {2, 3}), "2 3");
  const absl::Status full = Fill({{0, 1, 2}, {2, 3, 4}});
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(full.message(), HasSubstr("no slot of 5 is free for expert 4 of MoE layer 1"));
}

}  // namespace
}  // namespace switchyard::moe
