// Constrained sequences in the scheduler: masks that follow plans, masks made elsewhere, how sequences end, losses.
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

// One plan at once, but where a test says otherwise.
BatchingPolicy One() {
  BatchingPolicy policy;
  policy.max_in_flight = 1;
  return policy;
}

class ConstraintScheduleTest : public testing::Test {
 protected:
  explicit ConstraintScheduleTest(const BatchingPolicy& policy = One()) : scheduler_(policy) {}
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
  // The next plan, whose first item is masked, and its mask; empty: it has none, or another one.
  std::vector<int32_t> NextIds() {
    plan_ = scheduler_.Plan(kNoon, &events_);
    if (!plan_ || !plan_->ranks[0].items[0].masked) return {};
    return MaskIds(plan_->step);
  }
  // The mask of the first item of the masks that are known now.
  std::vector<int32_t> MaskIds(int64_t step) {
    const std::optional<StepMasks> masks = scheduler_.NextMasks();
    EXPECT_FALSE(scheduler_.NextMasks().has_value()) << "each once";
    if (!masks || masks->step != step || masks->group_epoch != plan_->group_epoch) return {};
    EXPECT_EQ(masks->ranks[0].items[0].item, 0);
    const grammar::TokenMask& mask = masks->ranks[0].items[0].mask;
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

  Scheduler scheduler_;
  std::vector<Event> events_;
  std::optional<StepPlan> plan_;
};

using Ids = std::vector<int32_t>;

TEST_F(ConstraintScheduleTest, MasksFollowTheTokensAndTheEndComesWhereTheTextIsWhole) {
  StartGroup();
  ASSERT_TRUE(Submit(1, "root ::= \"a\" \"b\"+ ").ok());
  EXPECT_EQ(NextIds(), (Ids{1, 3}));
  EXPECT_TRUE(plan_->ranks[0].items[0].init->sampling.constrained);
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

// The worker draws a stop token before min_tokens only where the mask has no other.
TEST_F(ConstraintScheduleTest, MinTokensDoNotProlongWhatCannotGoOn) {
  StartGroup();
  Request request;
  request.id = 1;
  request.prompt = {7, 8};
  request.max_tokens = 20;
  request.sampling.min_tokens = 10;
  request.sampling.stop_ids = {kEnd, 2};
  request.end_ids = {kEnd};
  request.constraint = Ebnf("root ::= \"a\" \"b\" \"a\"");
  ASSERT_TRUE(scheduler_.Submit(std::move(request), kNoon).ok());
  EXPECT_EQ(NextIds(), (Ids{1, 3}));
  Answer(*plan_, {1});
  EXPECT_EQ(NextIds(), (Ids{2}));
  Answer(*plan_, {2});
  EXPECT_EQ(Reason(), FinishReason::kStop);
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
    EXPECT_FALSE(plan->ranks[0].items[1].masked);
    const std::optional<StepMasks> masks = scheduler_.NextMasks();
    ASSERT_TRUE(masks.has_value());
    EXPECT_EQ(masks->ranks[0].items.size(), 1u);
    Answer(*plan, {1, 5});
  }
}

class TwoInFlightTest : public ConstraintScheduleTest {
 protected:
  TwoInFlightTest() : ConstraintScheduleTest(BatchingPolicy()) {}
};

TEST_F(TwoInFlightTest, MasksFollowTheirPlanWhenTheStepBeforeIsCommitted) {
  StartGroup();
  ASSERT_TRUE(Submit(1, "root ::= \"a\" \"b\" \"c\"").ok());
  EXPECT_EQ(NextIds(), (Ids{1, 3}));
  const StepPlan first = *plan_;
  plan_ = scheduler_.Plan(kNoon, &events_);
  ASSERT_TRUE(plan_.has_value());
  EXPECT_TRUE(plan_->ranks[0].items[0].masked);
  EXPECT_FALSE(scheduler_.NextMasks().has_value()) << "they follow from the token that is not known yet";
  const StepPlan second = *plan_;
  Answer(first, {1});
  EXPECT_EQ(MaskIds(second.step), (Ids{2}));
  plan_ = scheduler_.Plan(kNoon, &events_);
  const StepPlan third = *plan_;
  Answer(second, {2});
  EXPECT_EQ(MaskIds(third.step), (Ids{4}));
  plan_ = scheduler_.Plan(kNoon, &events_);
  ASSERT_TRUE(plan_.has_value()) << "planned before the end is known";
  Answer(third, {4});
  EXPECT_EQ(Reason(), FinishReason::kStop);
  const std::optional<StepMasks> masks = scheduler_.NextMasks();
  ASSERT_TRUE(masks.has_value()) << "ranks wait for them all the same";
  EXPECT_EQ(masks->step, plan_->step);
  EXPECT_TRUE(masks->ranks[0].items[0].mask.empty());
  Answer(*plan_, {9});
  EXPECT_TRUE(scheduler_.Idle());
}

TEST_F(TwoInFlightTest, ACancelledSequencesMaskIsEmpty) {
  StartGroup();
  ASSERT_TRUE(Submit(1, "root ::= \"a\"+").ok());
  EXPECT_EQ(NextIds(), (Ids{1}));
  plan_ = scheduler_.Plan(kNoon, &events_);
  ASSERT_TRUE(plan_.has_value());
  scheduler_.Cancel(1, Scheduler::kAllChoices, FinishReason::kAbort, kNoon, &events_);
  EXPECT_EQ(MaskIds(plan_->step), Ids());
}

// All masks are made elsewhere.
class MasksElsewhereTest : public ConstraintScheduleTest {
 protected:
  static BatchingPolicy Policy() {
    BatchingPolicy policy;
    policy.mask_work_at_once = 0;
    return policy;
  }
  MasksElsewhereTest() : ConstraintScheduleTest(Policy()) {}
  // Makes those that are asked for.
  int MakeMasks(bool fail = false) {
    std::vector<MaskRequest> requests = scheduler_.TakeMaskRequests();
    for (MaskRequest& request : requests) {
      MaskAnswer answer{.key = request.key, .mask = request.task.Run(), .work_left = request.task.work};
      if (fail) answer.mask = absl::ResourceExhaustedError("too much");
      scheduler_.SetMask(std::move(answer), kNoon, &events_);
    }
    return static_cast<int>(requests.size());
  }
};

TEST_F(MasksElsewhereTest, ASequenceStartsWithItsFirstMaskAndOthersDoNotWaitForIt) {
  StartGroup();
  ASSERT_TRUE(Submit(1, "root ::= \"a\" \"b\" \"b\"").ok());
  ASSERT_TRUE(Submit(2, nullptr).ok());
  const StepPlan first = *scheduler_.Plan(kNoon, &events_);
  EXPECT_EQ(first.ranks[0].items.size(), 1u) << "not the one whose first mask is being made";
  EXPECT_EQ(MakeMasks(), 1);
  const StepPlan second = *scheduler_.Plan(kNoon, &events_);
  ASSERT_EQ(second.ranks[0].items.size(), 2u);
  EXPECT_TRUE(scheduler_.NextMasks().has_value());
  Answer(first, {5});
  plan_ = scheduler_.Plan(kNoon, &events_);
  Answer(second, {6, 1});
  EXPECT_FALSE(scheduler_.NextMasks().has_value());
  EXPECT_EQ(MakeMasks(), 1);
  const std::optional<StepMasks> masks = scheduler_.NextMasks();
  ASSERT_TRUE(masks.has_value());
  EXPECT_EQ(masks->step, plan_->step);
  ASSERT_EQ(masks->ranks[0].items.size(), 1u);
  EXPECT_EQ(masks->ranks[0].items[0].item, 0) << "decodes are in order of arrival";
  EXPECT_EQ(masks->ranks[0].items[0].mask.ids, (Ids{2}));
}

TEST_F(MasksElsewhereTest, AMaskThatCannotBeMadeEndsItsSequenceAndIsEmpty) {
  StartGroup();
  ASSERT_TRUE(Submit(1, "root ::= \"a\"+ \"b\"").ok());
  EXPECT_EQ(MakeMasks(), 1);
  EXPECT_EQ(NextIds(), (Ids{1, 3}));
  const StepPlan first = *plan_;
  plan_ = scheduler_.Plan(kNoon, &events_);
  Answer(first, {1});
  EXPECT_EQ(MakeMasks(/*fail=*/true), 1);
  EXPECT_EQ(Reason(), FinishReason::kConstraint);
  EXPECT_EQ(MaskIds(plan_->step), Ids());
  Answer(*plan_, {1});
  EXPECT_TRUE(scheduler_.Idle());
}

TEST_F(MasksElsewhereTest, MasksOfSequencesThatAreGoneAreIgnored) {
  StartGroup();
  ASSERT_TRUE(Submit(1, "root ::= \"a\"+").ok());
  std::vector<MaskRequest> requests = scheduler_.TakeMaskRequests();
  ASSERT_EQ(requests.size(), 1u);
  scheduler_.Cancel(1, Scheduler::kAllChoices, FinishReason::kAbort, kNoon, &events_);
  scheduler_.SetMask({.key = requests[0].key, .mask = requests[0].task.Run(), .work_left = 1}, kNoon, &events_);
  EXPECT_TRUE(scheduler_.Idle());
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
