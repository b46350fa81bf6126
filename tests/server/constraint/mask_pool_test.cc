// The threads that make masks: in which order, one after the other for a constraint, and what nobody wants any more.
#include "server/constraint/mask_pool.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/grammar/ebnf.h"

namespace switchyard::server {
namespace {

using ::testing::ElementsAre;

class MaskPoolTest : public testing::Test {
 protected:
  // Masks of "x", of a constraint of its own.
  batching::MaskRequest Request(batching::RequestId id, int32_t output,
                                std::shared_ptr<grammar::Automaton> automaton = nullptr) {
    if (automaton == nullptr) automaton = Automaton();
    return {.key = {.request = id, .choice = 0, .output = output},
            .task = grammar::Matcher(std::move(automaton)).TaskOfMask(),
            .wanted = wanted_};
  }
  std::shared_ptr<grammar::Automaton> Automaton() {
    auto grammar = grammar::ParseEbnf("root ::= \"x\"");
    EXPECT_TRUE(grammar.ok());
    return std::make_shared<grammar::Automaton>(
        *std::move(grammar), std::make_shared<const grammar::TokenTrie>(std::vector<std::string>{"w", "x"}), &totals_);
  }
  // Called by the pool.  The answers of request 0 hold their threads until Release.
  void Done(const batching::MaskAnswer& answer) {
    absl::MutexLock lock(&mu_);
    ++holding_;
    const auto free = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return answer.key.request != 0 || released_; };
    mu_.Await(absl::Condition(&free));
    --holding_;
    if (answer.key.request == 0) return;
    EXPECT_TRUE(answer.mask.ok() && (*answer.mask)->bits == "\x02") << answer.mask.status();
    made_.push_back(answer.key.request);
  }
  void HoldThreads(MaskPool* pool) {
    for (int i = 0; i < MaskPool::kThreads; ++i) pool->Start(Request(0, 0));
    absl::MutexLock lock(&mu_);
    const auto held = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return holding_ == MaskPool::kThreads; };
    mu_.Await(absl::Condition(&held));
  }
  std::vector<batching::RequestId> Made(size_t count) {
    absl::MutexLock lock(&mu_);
    released_ = true;
    const auto all = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return made_.size() >= count; };
    mu_.Await(absl::Condition(&all));
    return made_;
  }

  grammar::AutomatonTotals totals_;
  std::shared_ptr<const bool> wanted_ = std::make_shared<const bool>(true);
  absl::Mutex mu_;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  int holding_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<batching::RequestId> made_ ABSL_GUARDED_BY(mu_);
};

TEST_F(MaskPoolTest, MasksThatStepsMayAwaitGoFirst) {
  MaskPool pool([this](const batching::MaskAnswer& answer, absl::Duration) { Done(answer); });
  HoldThreads(&pool);
  const std::shared_ptr<grammar::Automaton> one = Automaton();  // so that they are made one after the other
  pool.Start(Request(1, 0, one));
  pool.Start(Request(2, 0, one));
  pool.Start(Request(3, 7, one));
  EXPECT_EQ(pool.num_waiting(), 3u);
  EXPECT_THAT(Made(3), ElementsAre(3, 1, 2));
}

TEST_F(MaskPoolTest, WhatNobodyWantsIsNotMadeNorKept) {
  MaskPool pool([this](const batching::MaskAnswer& answer, absl::Duration) { Done(answer); });
  HoldThreads(&pool);
  const std::shared_ptr<grammar::Automaton> one = Automaton();
  pool.Start(Request(1, 0, one));
  batching::MaskRequest of_ended = Request(2, 0, one);
  of_ended.wanted.reset();
  for (size_t i = 0; i < 10 * MaskPool::kLookAt; ++i) {
    pool.Start(of_ended);
    ASSERT_LE(pool.num_waiting(), MaskPool::kLookAt);
  }
  pool.Start(of_ended);
  EXPECT_GE(pool.num_waiting(), 2u);
  pool.Start(Request(3, 0, one));
  EXPECT_THAT(Made(2), ElementsAre(1, 3));
}

}  // namespace
}  // namespace switchyard::server
