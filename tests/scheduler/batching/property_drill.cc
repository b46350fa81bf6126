#include "tests/scheduler/batching/property_drill.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "gtest/gtest.h"
#include "tests/scheduler/batching/event_text.h"
#include "tests/scheduler/batching/invariants.h"

namespace switchyard::testing_batching {

void Drill::Go(int num_requests, int burst) {
  int turns = 0;
  while (num_requests > 0 || !scheduler_.Idle()) {
    now_ += absl::Milliseconds(1);
    if (num_requests > 0 && Chance(0.3)) {
      for (int i = 0; i < burst && num_requests > 0; ++i, --num_requests) SubmitOne();
    }
    Turn();
    batching::Invariants::Check(scheduler_);
    ASSERT_LT(++turns, 60000) << "does not end";
    if (testing::Test::HasFailure()) return;
  }
  CheckQuiet();
}

std::vector<int32_t> Drill::Tokens(int32_t n) {
  std::vector<int32_t> tokens(n);
  for (int32_t& token : tokens) token = Pick(0, kVocab - 1);
  return tokens;
}

void Drill::StartGroup() {
  results_.clear();
  scheduler_.StartGroup({.epoch = ++epoch_,
                         .num_ranks = num_ranks_,
                         .num_blocks = num_blocks_,
                         .weights_version = 0,
                         .expert_path_ids = kPathIds},
                        now_, &events_);
  executor_ = std::make_unique<FakeExecutor>(num_ranks_, num_blocks_, policy_.block_size, policy_.max_num_seqs);
  next_step_ = 1;
  TakeEvents();
}

void Drill::SubmitOne() {
  batching::Request request;
  request.id = ++last_id_;
  const int32_t longest = scheduler_.max_context() - 1;
  if (Chance(0.6)) request.prompt = prefixes_[Pick(0, 2)];
  const std::vector<int32_t> tail = Tokens(Pick(1, std::max(1, longest / 3)));
  if (request.prompt.empty() || Chance(0.8)) request.prompt.insert(request.prompt.end(), tail.begin(), tail.end());
  if (static_cast<int32_t>(request.prompt.size()) > longest) request.prompt.resize(longest);
  request.num_choices = Chance(0.2) ? Pick(2, 4) : 1;
  request.max_tokens = Pick(1, Chance(0.2) ? policy_.max_model_len : 12);
  request.sampling.seed = Pick(0, 3);
  if (Chance(0.5)) request.sampling.stop_ids = Tokens(3);
  if (Chance(0.3)) request.sampling.min_tokens = Pick(0, 6);
  if (Chance(0.2)) request.sampling.num_prompt_logprobs = 0;
  if (Chance(0.2)) request.sampling.num_logprobs = 0;
  if (Chance(0.3)) request.sampling.expert_paths_from = 0;
  if (Chance(accidents_.deadline)) request.deadline = now_ + absl::Milliseconds(Pick(0, 60));
  request.cache_salt = Chance(0.2) ? "other" : "";
  if (Chance(0.5)) request.adapter = Pick(1, 2);
  Client client{request, std::vector<Choice>(request.num_choices)};
  for (int32_t c = 0; c < request.num_choices; ++c) {
    client.choices[c].sampling = request.sampling;
    client.choices[c].sampling.choice = c;
  }
  const absl::Status status = scheduler_.Submit(request, now_);
  if (absl::IsResourceExhausted(status)) return;
  ASSERT_TRUE(status.ok()) << status;
  clients_.emplace(request.id, std::move(client));
}

void Drill::Turn() {
  if (!clients_.empty() && Chance(accidents_.cancel)) CancelOne();
  if (Chance(accidents_.lose_group)) LoseGroup();
  const bool out = !results_.empty();
  if (!out || Chance(0.6)) {  // more plans than commits: the depth is used
    if (PlanOne()) return;
  }
  if (out) {
    CommitOne();
  } else {
    EXPECT_TRUE(scheduler_.Idle()) << "nothing planned, nothing in flight, and requests wait";
  }
}

bool Drill::PlanOne() {
  std::optional<batching::StepPlan> plan = scheduler_.Plan(now_, &events_);
  TakeEvents();
  if (!plan) return false;
  ++steps_;
  log_ += plan->DebugString();
  CheckPlan(*plan);
  results_.push_back(executor_->Execute(*plan));
  if (Chance(accidents_.non_finite)) Spoil(&results_.back());
  EXPECT_LE(static_cast<int32_t>(results_.size()), policy_.max_in_flight);
  return true;
}

void Drill::Spoil(batching::StepResult* result) {
  for (batching::RankResult& rank : result->ranks) {
    if (rank.items.empty()) continue;
    batching::ItemResult& item = rank.items[Pick(0, static_cast<int32_t>(rank.items.size()) - 1)];
    item = batching::ItemResult();
    item.status = batching::ItemStatus::kNonFinite;
  }
}

void Drill::CheckPlan(const batching::StepPlan& plan) {
  EXPECT_EQ(plan.step, next_step_++);
  EXPECT_EQ(plan.group_epoch, epoch_);
  ASSERT_EQ(static_cast<int32_t>(plan.ranks.size()), num_ranks_);
  std::vector<int32_t> rank_rows;
  for (const batching::RankPlan& rank : plan.ranks) {
    EXPECT_LE(rank.NumRows(), policy_.max_batched_tokens);
    EXPECT_LE(static_cast<int32_t>(rank.items.size()), policy_.max_num_seqs);
    rank_rows.push_back(rank.NumRows());
    for (const batching::StepItem& item : rank.items) {
      if (policy_.prefill_chunk > 0) {
        EXPECT_LE(item.num_query, policy_.prefill_chunk);
      }
      EXPECT_TRUE(policy_.prefix_reuse || !item.init || item.start_pos == 0);
    }
  }
  CheckTransfers(plan, rank_rows);
}

// Transfers are worth it, nobody gives away what it has not, gives away and borrows, or ends with more than the fullest
// rank had.
void Drill::CheckTransfers(const batching::StepPlan& plan, const std::vector<int32_t>& rank_rows) {
  std::vector<int32_t> given(rank_rows.size()), borrowed(rank_rows.size());
  for (const batching::RankPlan& rank : plan.ranks) {
    for (const batching::StepItem& item : rank.items) {
      const bool reports = item.init && item.init->sampling.expert_paths_from >= 0;
      EXPECT_TRUE(plan.transfers.empty() || !reports) << "a borrower does not report what its rows chose";
    }
  }
  for (const batching::RowTransfer& transfer : plan.transfers) {
    EXPECT_GT(policy_.min_rebalance_rows, 0);
    EXPECT_GE(transfer.rows, policy_.min_rebalance_rows);
    given[transfer.from] += transfer.rows;
    borrowed[transfer.to] += transfer.rows;
  }
  const int32_t before = *std::max_element(rank_rows.begin(), rank_rows.end());
  int32_t most = 0;
  for (size_t r = 0; r < rank_rows.size(); ++r) {
    EXPECT_TRUE(given[r] == 0 || borrowed[r] == 0) << plan.DebugString();
    EXPECT_LE(given[r], rank_rows[r]);
    most = std::max(most, rank_rows[r] - given[r] + borrowed[r]);
  }
  EXPECT_LE(most, before);
  EXPECT_EQ(plan.most_rows(), most);
}

void Drill::CommitOne() {
  const batching::StepResult result = std::move(results_.front());
  results_.pop_front();
  const absl::Status status = scheduler_.Commit(result, now_, &events_);
  ASSERT_TRUE(status.ok()) << status << result.DebugString();
  TakeEvents();
}

void Drill::CancelOne() {
  auto victim = clients_.begin();
  std::advance(victim, Pick(0, static_cast<int32_t>(clients_.size()) - 1));
  const int32_t choice =
      Chance(0.5) ? batching::Scheduler::kAllChoices : Pick(0, victim->second.request.num_choices - 1);
  const batching::FinishReason reason = Chance(0.5) ? batching::FinishReason::kAbort : batching::FinishReason::kStop;
  for (size_t c = 0; c < victim->second.choices.size(); ++c) {
    if (choice != batching::Scheduler::kAllChoices && choice != static_cast<int32_t>(c)) continue;
    Choice& target = victim->second.choices[c];
    target.cancelled_for_stop |= reason == batching::FinishReason::kStop && !target.finished;
  }
  scheduler_.Cancel(victim->first, choice, reason, now_, &events_);
  TakeEvents();
}

void Drill::LoseGroup() {
  const bool fail_waiting = Chance(0.3);
  scheduler_.LoseGroup(fail_waiting, now_, &events_);
  for (const batching::Event& event : events_) {
    const auto* finished = std::get_if<batching::FinishedEvent>(&event.what);
    EXPECT_TRUE(fail_waiting || finished == nullptr || finished->reason == batching::FinishReason::kPoisoned)
        << ToText(event);
  }
  TakeEvents();
  EXPECT_EQ(scheduler_.Stats().running, 0);
  EXPECT_FALSE(scheduler_.Plan(now_, &events_).has_value());
  if (!results_.empty()) {
    EXPECT_TRUE(absl::IsFailedPrecondition(scheduler_.Commit(results_.front(), now_, &events_)));
  }
  num_ranks_ = Pick(1, 3);
  StartGroup();
}

void Drill::TakeEvents() {
  for (const batching::Event& event : events_) {
    ASSERT_TRUE(clients_.contains(event.request)) << ToText(event);
    Client& client = clients_.at(event.request);
    Choice& choice = client.choices[event.choice];
    ASSERT_FALSE(choice.finished) << ToText(event);
    if (const auto* token = std::get_if<batching::TokenEvent>(&event.what)) {
      ASSERT_EQ(token->index, static_cast<int32_t>(choice.outputs.size())) << ToText(event);
      ASSERT_EQ(token->logprobs.has_value(), client.request.sampling.num_logprobs >= 0);
      choice.outputs.push_back(token->token);
    } else if (const auto* prompt = std::get_if<batching::PromptLogprobsEvent>(&event.what)) {
      ASSERT_EQ(prompt->first_position, static_cast<int32_t>(choice.prompt_logprobs.size()) + 1);
      choice.prompt_logprobs.insert(choice.prompt_logprobs.end(), prompt->positions.begin(), prompt->positions.end());
    } else if (const auto* paths = std::get_if<batching::ExpertPathsEvent>(&event.what)) {
      TakePaths(client, *paths, &choice);
    } else {
      choice.finished = true;
      CheckFinished(client, event.choice, std::get<batching::FinishedEvent>(event.what));
    }
  }
  events_.clear();
}

// Without gaps, and ahead of the token that the last row gave.
void Drill::TakePaths(const Client& client, const batching::ExpertPathsEvent& event, Choice* choice) {
  ASSERT_EQ(client.request.sampling.expert_paths_from, 0);
  const auto prompt = static_cast<int32_t>(client.request.prompt.size());
  const int32_t from = choice->sampling.choice == 0 ? 0 : prompt;
  ASSERT_EQ(event.first_position, from + static_cast<int32_t>(choice->paths.size()) / kPathIds);
  ASSERT_FALSE(event.experts.empty());
  choice->paths.insert(choice->paths.end(), event.experts.begin(), event.experts.end());
  const int32_t end = from + static_cast<int32_t>(choice->paths.size()) / kPathIds;
  EXPECT_LE(end, prompt + static_cast<int32_t>(choice->outputs.size()));
}

void Drill::CheckPaths(const Client& client, const Choice& choice, int32_t cached_tokens) {
  if (client.request.sampling.expert_paths_from < 0) {
    EXPECT_TRUE(choice.paths.empty());
    return;
  }
  std::vector<int32_t> tokens = client.request.prompt;
  const int32_t from = choice.sampling.choice == 0 ? 0 : static_cast<int32_t>(tokens.size());
  tokens.insert(tokens.end(), choice.outputs.begin(), choice.outputs.end());
  const int32_t reported = from + static_cast<int32_t>(choice.paths.size()) / kPathIds;
  if (!choice.outputs.empty()) {  // else it may have ended within its prompt
    EXPECT_EQ(reported, static_cast<int32_t>(tokens.size()) - 1);
    EXPECT_TRUE(from > 0 || cached_tokens == 0);
  }
  EXPECT_EQ(choice.paths, ReferencePaths(tokens, client.request.adapter, from, reported));
}

void Drill::CheckFinished(const Client& client, int32_t c, const batching::FinishedEvent& finished) {
  const Choice& choice = client.choices[c];
  const batching::Request& request = client.request;
  const std::vector<int32_t> expected = ReferenceOutputs(request, choice.sampling, scheduler_.max_context());
  ASSERT_LE(choice.outputs.size(), expected.size());
  const bool whole = finished.reason == batching::FinishReason::kLength ||
                     (finished.reason == batching::FinishReason::kStop && !choice.cancelled_for_stop);
  if (whole) {
    EXPECT_EQ(choice.outputs, expected) << "request " << request.id << "." << c;
    const auto& stops = choice.sampling.stop_ids;
    const bool by_stop = std::count(stops.begin(), stops.end(), expected.back()) > 0 &&
                         static_cast<int32_t>(expected.size()) > choice.sampling.min_tokens;
    EXPECT_EQ(finished.reason, by_stop ? batching::FinishReason::kStop : batching::FinishReason::kLength);
  }
  EXPECT_TRUE(std::equal(choice.outputs.begin(), choice.outputs.end(), expected.begin())) << "a wrong beginning";
  EXPECT_EQ(finished.usage.completion_tokens, static_cast<int32_t>(choice.outputs.size()));
  EXPECT_EQ(finished.usage.prompt_tokens, static_cast<int32_t>(request.prompt.size()));
  EXPECT_LT(finished.usage.cached_tokens, finished.usage.prompt_tokens);
  EXPECT_GE(finished.timings.Queue(), absl::ZeroDuration());
  EXPECT_GE(finished.timings.Prefill(), absl::ZeroDuration());
  EXPECT_GE(finished.timings.Decode(), absl::ZeroDuration());
  CheckPaths(client, choice, finished.usage.cached_tokens);
  const bool wants_prompt = request.sampling.num_prompt_logprobs >= 0 && c == 0;
  EXPECT_TRUE(wants_prompt || choice.prompt_logprobs.empty());
  if (wants_prompt && !choice.outputs.empty()) {
    EXPECT_EQ(choice.prompt_logprobs.size(), request.prompt.size() - 1);
    EXPECT_EQ(finished.usage.cached_tokens, 0);
  }
  for (size_t i = 0; i < choice.prompt_logprobs.size(); ++i) {
    EXPECT_EQ(choice.prompt_logprobs[i].chosen.token, request.prompt[i + 1]);
  }
}

void Drill::CheckQuiet() {
  const batching::SchedulerStats stats = scheduler_.Stats();
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.waiting_requests, 0);
  EXPECT_EQ(stats.waiting_tokens, 0);
  EXPECT_EQ(stats.in_flight, 0);
  for (const batching::RankStats& rank : stats.ranks) {
    EXPECT_EQ(rank.blocks_used, 0);
    EXPECT_EQ(rank.running, 0);
  }
  EXPECT_EQ(scheduler_.NextDeadline(), absl::InfiniteFuture());
  for (const auto& [id, client] : clients_) {
    for (const Choice& choice : client.choices) EXPECT_TRUE(choice.finished) << "request " << id << " never ended";
  }
}

}  // namespace switchyard::testing_batching
