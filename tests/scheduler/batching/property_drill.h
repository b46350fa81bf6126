// One random run of the scheduler against the fake group: requests, plans, commits and accidents in random order, and
// all that must hold meanwhile as gtest failures.  Used by property_test.cc.
//
// Checked: plans keep the policy's limits; events come in order, once, and end with a finish; every output is that of a
// run alone (a prefix of it, where the request was cut short); when something waits and nothing is in flight, something
// is planned; at the end nothing is held.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "scheduler/batching/scheduler.h"
#include "tests/scheduler/batching/fake_executor.h"

namespace switchyard::testing_batching {

// How often accidents happen, per turn of the test's loop.
struct Accidents {
  double cancel = 0;
  double lose_group = 0;
  double non_finite = 0;
  double deadline = 0;  // per request
};

// The state of one choice as the client knows it.
struct Choice {
  batching::SamplingParams sampling;
  std::vector<int32_t> outputs;
  std::vector<batching::PositionLogprobs> prompt_logprobs;
  std::vector<int16_t> paths;
  bool finished = false;
  bool cancelled_for_stop = false;
};

struct Client {
  batching::Request request;
  std::vector<Choice> choices;
};

class Drill {
 public:
  Drill(uint32_t seed, batching::BatchingPolicy policy, int32_t num_ranks, int32_t num_blocks, Accidents accidents)
      : random_(seed),
        policy_(policy),
        num_ranks_(num_ranks),
        num_blocks_(num_blocks),
        accidents_(accidents),
        scheduler_(policy) {
    for (int i = 0; i < 3; ++i) prefixes_.push_back(Tokens(Pick(1, policy.max_model_len / 2)));
    StartGroup();
  }

  // Requests arrive in bursts, in about a third of the turns.
  void Go(int num_requests, int burst = 1);

  int64_t steps() const { return steps_; }
  batching::SchedulerStats stats() const { return scheduler_.Stats(); }
  // All plans, as text.
  const std::string& log() const { return log_; }

 private:
  int32_t Pick(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(random_); }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
  std::vector<int32_t> Tokens(int32_t n);

  void StartGroup();
  void SubmitOne();
  // One thing happens: mostly a plan, if it may, or a commit.
  void Turn();
  // False: there was nothing to plan.
  bool PlanOne();
  // One item of each rank comes back as not finite.
  void Spoil(batching::StepResult* result);
  void CheckPlan(const batching::StepPlan& plan);
  void CheckTransfers(const batching::StepPlan& plan, const std::vector<int32_t>& rank_rows);
  void CommitOne();
  void CancelOne();
  void LoseGroup();
  void TakeEvents();
  void TakePaths(const Client& client, const batching::ExpertPathsEvent& event, Choice* choice);
  void CheckPaths(const Client& client, const Choice& choice, int32_t cached_tokens);
  void CheckFinished(const Client& client, int32_t c, const batching::FinishedEvent& finished);
  void CheckQuiet();

  std::mt19937 random_;
  const batching::BatchingPolicy policy_;
  int32_t num_ranks_;
  const int32_t num_blocks_;
  const Accidents accidents_;
  batching::Scheduler scheduler_;
  std::unique_ptr<FakeExecutor> executor_;
  std::vector<std::vector<int32_t>> prefixes_;
  std::map<batching::RequestId, Client> clients_;
  std::deque<batching::StepResult> results_;
  std::vector<batching::Event> events_;
  absl::Time now_ = absl::UnixEpoch();
  batching::RequestId last_id_ = 0;
  int64_t epoch_ = 0;
  int64_t next_step_ = 1;
  int64_t steps_ = 0;
  std::string log_;
};

}  // namespace switchyard::testing_batching
