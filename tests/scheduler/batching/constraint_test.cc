// Constrained sequences in the scheduler: masks in plans, when plans wait, how sequences end, preemption and losses.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/batching/scheduler.h"
#include "scheduler/grammar/ebnf.h"
#include "tests/scheduler/batching/invariants.h"

namespace switchyard::batching {
namespace {

constexpr absl::Time kNoon = absl::UnixEpoch();
constexpr int32_t kEnd = 0;  // end of sequence; tokens 1, 2, 3 are a, b, ab

std::shared_ptr<grammar::Automaton> Ebnf(const char* text) {
  static grammar::AutomatonTotals totals;
  static const auto trie =
      std::make_shared<const grammar::TokenTrie>(std::vector<std::string>{"", "a", "b", "ab", "c", "", "", "", "", ""});
  auto grammar = grammar::ParseEbnf(text);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return std::make_shared<grammar::Automaton>(*std::move(grammar), trie, &totals);
}

class ConstraintScheduleTest : public testing::Test {
 protected:
  void StartGroup(int64_t epoch = 1) {
    scheduler_.StartGroup({.epoch = epoch, .num_ranks = 1, .num_blocks = 64}, kNoon, &events_);
  }
  absl::Status Submit(RequestId id, const char* ebnf, int32_t max_tokens = 20) {
    Request request;
    request.id = id;
    request.prompt = {7, 8};
    request.max_tokens = max_tokens;
    request.sampling.stop_ids = {kEnd};
    request.end_ids = {kEnd};
    if (ebnf != nullptr) request.constraint = Ebnf(ebnf);
    return scheduler_.Submit(std::move(request), kNoon);
  }
  // Answers the plan's items with these tokens, in order.
  void Answer(const StepPlan& plan, std::vector<int32_t> tokens) {
    StepResult result{.step = plan.step, .group_epoch = plan.group_epoch, .ranks = {}};
    RankResult& rank = result.ranks.emplace_back();
    for (size_t i = 0; i < plan.ranks[0].items.size(); ++i) {
      rank.items.emplace_back();
      if (plan.ranks[0].items[i].sample) rank.items.back().tokens = {tokens.at(i)};
    }
    ASSERT_TRUE(scheduler_.Commit(result, kNoon, &events_).ok());
    Invariants::Check(scheduler_);
  }
  // The mask of the one item of the next plan; empty: it has none.
  std::vector<int32_t> NextIds() {
    plan_ = scheduler_.Plan(kNoon, &events_);
    if (!plan_ || !plan_->ranks[0].items[0].token_mask) return {};
    const grammar::TokenMask& mask = *plan_->ranks[0].items[0].token_mask;
    std::vector<int32_t> ids = mask.ids;
    for (int32_t id = 0; id < static_cast<int32_t>(mask.bits.size()) * 8; ++id) {
      if ((mask.bits[static_cast<size_t>(id / 8)] >> (id % 8)) & 1) ids.push_back(id);
    }
    return ids;
  }
  FinishReason Reason() const {
    for (const Event& event : events_) {
      if (const auto* finished = std::get_if<FinishedEvent>(&event.what)) return finished->reason;
    }
    return FinishReason::kNone;
  }

  Scheduler scheduler_{BatchingPolicy()};
  std::vector<Event> events_;
  std::optional<StepPlan> plan_;
};

using Ids = std::vector<int32_t>;

TEST_F(ConstraintScheduleTest, MasksFollowTheTokensAndTheEndComesWhereTheTextIsWhole) {
  StartGroup();
  ASSERT_TRUE(Submit(1, "root ::= \"a\" \"b\"+ ").ok());
  EXPECT_EQ(NextIds(), (Ids{1, 3}));
  EXPECT_TRUE(plan_->ranks[0].items[0].init->sampling.constrained);
  EXPECT_FALSE(scheduler_.Plan(kNoon, &events_).has_value()) << "the next mask is not known yet";
  Answer(*plan_, {1});
  EXPECT_EQ(NextIds(), (Ids{2}));
  Answer(*plan_, {2});
  EXPECT_EQ(NextIds(), (Ids{kEnd, 2}));
  Answer(*plan_, {kEnd});
  EXPECT_EQ(Reason(), FinishReason::kStop);
}

TEST_F(ConstraintScheduleTest, ATextThatCannotGoOnEndsAtOnce) {
  StartGroup();
  ASSERT_TRUE(Submit(1, "root ::= \"ab\"").ok());
  EXPECT_EQ(NextIds(), (Ids{1, 3}));
  Answer(*plan_, {3});
  EXPECT_EQ(Reason(), FinishReason::kStop);
  EXPECT_TRUE(scheduler_.Idle());
}

TEST_F(ConstraintScheduleTest, ADeadEndAndATokenThatDoesNotFitAreErrors) {
  StartGroup();
  ASSERT_TRUE(Submit(1, "root ::= \"a\" \"z\"").ok());  // no token has a z
  EXPECT_EQ(NextIds(), (Ids{1}));
  Answer(*plan_, {1});
  EXPECT_EQ(Reason(), FinishReason::kConstraint);
  events_.clear();
  ASSERT_TRUE(Submit(2, "root ::= \"a\" \"b\"").ok());
  EXPECT_EQ(NextIds(), (Ids{1, 3}));
  Answer(*plan_, {2});
  EXPECT_EQ(Reason(), FinishReason::kConstraint);
  EXPECT_EQ(Submit(3, "root ::= \"z\"").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ConstraintScheduleTest, OthersAreInEveryStepBesideConstrainedOnes) {
  StartGroup();
  ASSERT_TRUE(Submit(1, "root ::= \"a\"+").ok());
  ASSERT_TRUE(Submit(2, nullptr).ok());
  for (int step = 0; step < 4; ++step) {
    const auto plan = scheduler_.Plan(kNoon, &events_);
    ASSERT_TRUE(plan.has_value());
    ASSERT_EQ(plan->ranks[0].items.size(), 2u);
    EXPECT_EQ(plan->exchange_version, kExactExchange) << "devices do not sample under masks by themselves";
    EXPECT_FALSE(plan->ranks[0].items[1].token_mask.has_value());
    EXPECT_FALSE(scheduler_.Plan(kNoon, &events_).has_value());
    Answer(*plan, {1, 5});
  }
  scheduler_.Cancel(1, Scheduler::kAllChoices, FinishReason::kAbort, kNoon, &events_);
  EXPECT_TRUE(scheduler_.Plan(kNoon, &events_).has_value());
  EXPECT_TRUE(scheduler_.Plan(kNoon, &events_).has_value()) << "two plans are in flight again";
}

TEST_F(ConstraintScheduleTest, MasksOutliveALostGroup) {
  StartGroup();
  ASSERT_TRUE(Submit(1, "root ::= \"a\" \"b\" \"c\"").ok());
  EXPECT_EQ(NextIds(), (Ids{1, 3}));
  Answer(*plan_, {1});
  EXPECT_EQ(NextIds(), (Ids{2}));
  scheduler_.LoseGroup(/*fail_waiting=*/false, kNoon, &events_);
  StartGroup(2);
  EXPECT_EQ(NextIds(), (Ids{2}));
  EXPECT_EQ(plan_->ranks[0].items[0].init->tokens, (Ids{7, 8, 1}));
  Answer(*plan_, {2});
  EXPECT_EQ(NextIds(), (Ids{4}));
}

}  // namespace
}  // namespace switchyard::batching
