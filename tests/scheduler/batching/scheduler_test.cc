// Tests that transcripts cannot express: refusals of malformed results, the policy's validation, hints.
#include "scheduler/batching/scheduler.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/scheduler/batching/invariants.h"

namespace switchyard::batching {
namespace {

using testing::HasSubstr;

constexpr absl::Time kStart = absl::UnixEpoch();

Request MakeRequest(RequestId id, std::vector<int32_t> prompt, int32_t max_tokens) {
  Request request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

// A result that fits the plan: token 1 wherever something is sampled.
StepResult Answer(const StepPlan& plan) {
  StepResult result;
  result.step = plan.step;
  result.group_epoch = plan.group_epoch;
  for (const RankPlan& rank : plan.ranks) {
    RankResult& answer = result.ranks.emplace_back();
    for (const StepItem& item : rank.items) {
      answer.items.emplace_back();
      if (item.sample) answer.items.back().tokens = {1};
    }
  }
  return result;
}

class SchedulerTest : public testing::Test {
 protected:
  void Start(Scheduler* scheduler, int32_t num_ranks = 1) {
    const GroupShape group{.epoch = 1,
                           .num_ranks = num_ranks,
                           .num_blocks = 64,
                           .weights_version = 0,
                           .long_rope_above = 0,
                           .min_rebalance_rows = 0};
    scheduler->StartGroup(group, kStart, &events_);
  }
  std::vector<Event> events_;
};

TEST(SequenceTest, APreemptedPrefillBeganWhenItWasFirstScheduled) {
  const auto at = [](int second) { return kStart + absl::Seconds(second); };
  PrefixChain chain({}, 2);
  Sequence sequence({.prompt = {5, 6, 7}, .sampling = {}, .chain = chain, .constraint = nullptr, .end_ids = {}}, at(0));
  sequence.Start(0, 0, 0, at(1));
  sequence.PlanItem(2, /*sample=*/false);
  sequence.CommitItem(/*sample=*/false);
  sequence.Preempt();
  sequence.Start(0, 0, 0, at(5));
  sequence.PlanItem(3, /*sample=*/true);
  sequence.CommitItem(/*sample=*/true);
  EXPECT_EQ(sequence.Append(9, 100, at(7)), FinishReason::kLength);
  EXPECT_EQ(sequence.timings().Queue(), absl::Seconds(1));
  EXPECT_EQ(sequence.timings().Prefill(), absl::Seconds(6));
}

TEST_F(SchedulerTest, AMalformedResultIsRefusedAndChangesNothing) {
  Scheduler scheduler{BatchingPolicy()};
  Start(&scheduler, 2);
  ASSERT_TRUE(scheduler.Submit(MakeRequest(1, {1, 2}, 4), kStart).ok());
  const StepPlan plan = *scheduler.Plan(kStart, &events_);
  const StepResult good = Answer(plan);
  const auto refuse = [&](const char* why, absl::StatusCode code, const auto& spoil) {
    StepResult bad = good;
    spoil(&bad);
    const absl::Status status = scheduler.Commit(bad, kStart, &events_);
    EXPECT_EQ(status.code(), code) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    Invariants::Check(scheduler);
  };
  const auto internal = absl::StatusCode::kInternal;
  refuse("the epoch is 1", absl::StatusCode::kFailedPrecondition, [](StepResult* r) { r->group_epoch = 2; });
  refuse("the oldest in flight is step 1", internal, [](StepResult* r) { r->step = 2; });
  refuse("1 ranks, expected 2", internal, [](StepResult* r) { r->ranks.pop_back(); });
  refuse("rank 0 has 0 items, expected 1", internal, [](StepResult* r) { r->ranks[0].items.clear(); });
  refuse("rank 1 has 1 items, expected 0", internal, [](StepResult* r) { r->ranks[1].items.emplace_back(); });
  refuse("0 tokens, expected 1", internal, [](StepResult* r) { r->ranks[0].items[0].tokens.clear(); });
  refuse("2 tokens, expected 1", internal, [](StepResult* r) { r->ranks[0].items[0].tokens = {1, 2}; });
  refuse("1 logprobs, expected 0", internal, [](StepResult* r) { r->ranks[0].items[0].logprobs.emplace_back(); });
  refuse("1 prompt logprobs, expected 0", internal,
         [](StepResult* r) { r->ranks[0].items[0].prompt_logprobs.emplace_back(); });
  refuse("3 experts, expected 0", internal, [](StepResult* r) { r->ranks[0].items[0].expert_paths = {1, 2, 3}; });
  EXPECT_TRUE(events_.empty());
  EXPECT_TRUE(scheduler.Commit(good, kStart, &events_).ok());
  EXPECT_EQ(events_.size(), 1u);
  EXPECT_TRUE(absl::IsFailedPrecondition(scheduler.Commit(good, kStart, &events_))) << "nothing is in flight";
}

TEST_F(SchedulerTest, RequestsThatMakeNoSenseAreRefused) {
  Scheduler scheduler{BatchingPolicy()};
  const auto message = [&](const Request& request) {
    const absl::Status status = scheduler.Submit(request, kStart);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  EXPECT_THAT(message(MakeRequest(1, {}, 1)), HasSubstr("no tokens"));
  EXPECT_THAT(message(MakeRequest(1, {1}, 0)), HasSubstr("max_tokens=0"));
  EXPECT_THAT(message(MakeRequest(1, std::vector<int32_t>(4096, 1), 1)), HasSubstr("4096 tokens"));
  Request choices = MakeRequest(1, {1}, 1);
  choices.num_choices = 65;
  EXPECT_THAT(message(choices), HasSubstr("n=65 must be between 1 and 64"));
  EXPECT_TRUE(scheduler.Idle());
}

TEST_F(SchedulerTest, EachChoiceHasItsOwnNumberAndOnlyTheFirstPromptLogprobs) {
  BatchingPolicy policy;
  policy.prefix_reuse = false;
  Scheduler scheduler(policy);
  Start(&scheduler);
  Request request = MakeRequest(1, {1, 2, 3}, 2);
  request.num_choices = 2;
  request.sampling.seed = 42;
  request.sampling.num_prompt_logprobs = 3;
  ASSERT_TRUE(scheduler.Submit(request, kStart).ok());
  const StepPlan plan = *scheduler.Plan(kStart, &events_);
  ASSERT_EQ(plan.ranks[0].items.size(), 2u);
  const SlotInit& first = *plan.ranks[0].items[0].init;
  const SlotInit& second = *plan.ranks[0].items[1].init;
  EXPECT_EQ(first.sampling.choice, 0u);
  EXPECT_EQ(second.sampling.choice, 1u);
  EXPECT_EQ(first.sampling.seed, 42u);
  EXPECT_EQ(first.num_prompt_tokens, 3);
  EXPECT_EQ(first.sampling.num_prompt_logprobs, 3);
  EXPECT_EQ(second.sampling.num_prompt_logprobs, -1);
}

// Its choices, and what is computed again after its group was lost, have a request's adapter; blocks of the same tokens
// are shared with requests of that adapter alone.
TEST_F(SchedulerTest, ARequestsAdapterGoesWhereItsSequencesGo) {
  BatchingPolicy policy;
  policy.max_in_flight = 1;
  Scheduler scheduler(policy);
  Start(&scheduler);
  std::vector<int32_t> prompt(static_cast<size_t>(3 * policy.block_size + 1), 7);
  RequestId id = 0;
  const auto run = [&](int32_t adapter, int32_t choices) {
    Request request = MakeRequest(++id, prompt, 1);
    request.adapter = adapter;
    request.num_choices = choices;
    EXPECT_TRUE(scheduler.Submit(request, kStart).ok());
    const StepPlan plan = *scheduler.Plan(kStart, &events_);
    std::vector<int32_t> starts;
    for (const StepItem& item : plan.ranks[0].items) {
      EXPECT_EQ(item.init->adapter, adapter);
      starts.push_back(item.start_pos);
    }
    EXPECT_TRUE(scheduler.Commit(Answer(plan), kStart, &events_).ok());
    return starts;
  };
  EXPECT_EQ(run(0, 1), (std::vector<int32_t>{0}));
  EXPECT_EQ(run(2, 1), (std::vector<int32_t>{0}));
  EXPECT_EQ(run(1, 1), (std::vector<int32_t>{0}));
  EXPECT_EQ(run(2, 2), (std::vector<int32_t>(2, 3 * policy.block_size)));
  EXPECT_EQ(run(0, 1), (std::vector<int32_t>{3 * policy.block_size}));
  Request lost = MakeRequest(++id, {1, 2}, 8);
  lost.adapter = 3;
  ASSERT_TRUE(scheduler.Submit(lost, kStart).ok());
  ASSERT_TRUE(scheduler.Commit(Answer(*scheduler.Plan(kStart, &events_)), kStart, &events_).ok());
  scheduler.LoseGroup(/*fail_waiting=*/false, kStart, &events_);
  scheduler.StartGroup({.epoch = 2, .num_ranks = 1, .num_blocks = 64}, kStart, &events_);
  const StepPlan again = *scheduler.Plan(kStart, &events_);
  EXPECT_EQ(again.ranks[0].items.at(0).init->tokens.size(), 3u);
  EXPECT_EQ(again.ranks[0].items.at(0).init->adapter, 3);
}

TEST_F(SchedulerTest, StatsAndHintsFollowTheLoad) {
  BatchingPolicy policy;
  policy.max_in_flight = 1;
  Scheduler scheduler(policy);
  EXPECT_TRUE(scheduler.Stats().ranks.empty());
  Start(&scheduler);
  EXPECT_EQ(scheduler.Stats().KvUsage(), 0.0);
  absl::Time now = kStart;
  for (RequestId id = 1; id <= 60; ++id) {  // one request each 200 ms
    ASSERT_TRUE(scheduler.Submit(MakeRequest(id, {1, 2}, 1), now).ok());
    const StepPlan plan = *scheduler.Plan(now, &events_);
    EXPECT_GT(scheduler.Stats().KvUsage(), 0.0);
    now += absl::Milliseconds(200);
    ASSERT_TRUE(scheduler.Commit(Answer(plan), now, &events_).ok());
  }
  EXPECT_NEAR(absl::ToDoubleMilliseconds(scheduler.RetryAfter()), 200, 1);
  const SchedulerStats stats = scheduler.Stats();
  EXPECT_EQ(stats.finished[static_cast<int>(FinishReason::kLength)], 60);
  EXPECT_EQ(stats.generated_tokens, 60);
  EXPECT_EQ(stats.prompt_tokens, 120);
  EXPECT_TRUE(scheduler.Idle());
}

TEST(BatchingPolicyTest, SaysWhichValueIsWrong) {
  EXPECT_TRUE(BatchingPolicy().Validate().ok());
  BatchingPolicy policy;
  policy.block_size = 0;
  EXPECT_THAT(std::string(policy.Validate().message()), HasSubstr("block_size=0 must be at least 1"));
  policy = BatchingPolicy();
  policy.max_model_len = 1;
  EXPECT_THAT(std::string(policy.Validate().message()), HasSubstr("max_model_len=1 must be at least 2"));
  policy = BatchingPolicy();
  policy.max_batched_tokens = 8;
  EXPECT_THAT(std::string(policy.Validate().message()),
              HasSubstr("max_batched_tokens=8 must be at least max_num_seqs=64"));
  policy.max_choices = 0;
  policy.block_size = -1;
  EXPECT_EQ(
      std::string(policy.Validate().message()),
      "batching: block_size=-1 must be at least 1\nbatching: max_choices=0 must be at least 1\n"
      "batching: max_batched_tokens=8 must be at least max_num_seqs=64, so that every running sequence can decode "
      "in each step");
}

}  // namespace
}  // namespace switchyard::batching
