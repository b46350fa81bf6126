// A fake worker that answers plans at once, as its script says: token n of a sequence is 'a' + n % 26.
//
// It keeps slots, and calls back on the engine's own thread, where gRPC would use its threads; the engine must work
// with both.
#pragma once

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/fleet/link_events.h"
#include "tests/server/engine/watched.h"

namespace switchyard::server {

class ScriptedWorker final : public WorkerClient {
 public:
  // The script.  Change it on the engine's thread, or before the worker is connected.
  struct Script {
    int32_t num_blocks = 100;
    bool experts_in_place = false;
    int undecided_ms = 0;                // what steps take longer whose plans do not decide
    std::vector<int64_t> expert_counts;  // [L * E] that every step counts, of prompts
    bool counts_items = false;           // every step counts its own rows, all of expert 0, and those of decodes apart
    std::vector<int64_t> layer_rows;     // rows of each layer that every step computes here; none: all of one layer
    int64_t rows_sent = 0;               // that each step says it sent
    double step_seconds = 0;             // that each step says it took
    std::string profile;                 // answered, four bytes at a time, when asked for; empty: nothing
  };

  std::atomic<int> decided = 0, undecided = 0;  // plans, by whether their layers decide

  ScriptedWorker(WorkerId id, LinkEvents* engine, Script its_script)
      : script(std::move(its_script)), id_(id), engine_(engine) {}

  void Join(const fleet::RankAssignment& assignment) override {
    engine_->OnGroupReady(
        id_,
        {.epoch = assignment.epoch, .num_kv_blocks = script.num_blocks, .experts_in_place = script.experts_in_place});
  }
  void Execute(const batching::StepPlan& plan, int rank, absl::Duration) override {
    if (plan.train_slice_ms > 0) {
      EXPECT_EQ(plan.step, 0);
      ++slices_;
      return;
    }
    if (const int ms = step_ms_; ms > 0) absl::SleepFor(absl::Milliseconds(ms));
    if (!plan.decides) absl::SleepFor(absl::Milliseconds(script.undecided_ms));
    ++(plan.decides ? decided : undecided);
    batching::RankResult result;
    result.expert_counts = script.expert_counts;
    if (script.counts_items) CountItems(plan.ranks[rank].items, &result);
    for (const int64_t count : result.expert_counts) result.expert_rows += count;
    result.layer_rows = script.layer_rows.empty() ? std::vector<int64_t>{result.expert_rows} : script.layer_rows;
    result.rows_sent = script.rows_sent;
    result.timings.expert_seconds = 1e-6 * static_cast<double>(result.expert_rows);
    result.timings.total_seconds = script.step_seconds;
    layer_costs_.Set(plan.layer_costs);
    bool masked = false;
    for (const batching::StepItem& item : plan.ranks[rank].items) {
      int32_t& outputs = outputs_[item.slot];
      if (item.init) outputs = static_cast<int32_t>(item.init->tokens.size()) - item.init->num_prompt_tokens;
      batching::ItemResult out;
      if (item.sample) out.tokens.push_back('a' + outputs++ % 26);
      result.items.push_back(std::move(out));
      masked = masked || item.masked;
    }
    answers_.Change([&](Answers* answers) {
      if (masked) answers->masked.insert(plan.step);
      answers->waiting.push_back({plan.group_epoch, plan.step, std::move(result)});
      Send(answers);
    });
  }
  // The script's tokens need not fit.
  void SendMasks(const batching::StepMasks& masks, int rank) override {
    EXPECT_FALSE(masks.ranks[rank].items.empty());
    masks_.Change([&](std::vector<batching::RankMasks>* all) { all->push_back(masks.ranks[rank]); });
    answers_.Change([&](Answers* answers) {
      EXPECT_EQ(answers->masked.erase(masks.step), 1u) << "masks of step " << masks.step << ", which awaits none";
      Send(answers);
    });
  }
  void AbortGroup(int64_t, const std::string&) override {
    outputs_.clear();
    answers_.Change([](Answers* answers) {
      answers->waiting.clear();
      answers->masked.clear();
    });
  }
  void SendProfile(int64_t group_epoch, int64_t request, int64_t offset) override {
    ++profile_asked_;
    if (script.profile.empty()) return;
    engine_->OnProfilePart(id_, group_epoch,
                           {.request = request,
                            .offset = offset,
                            .total_bytes = static_cast<int64_t>(script.profile.size()),
                            .data = script.profile.substr(static_cast<size_t>(offset), 4),
                            .error = ""});
  }
  void Close(const absl::Status& status) override { closed_.Set(status); }

  // The following methods are thread-safe.
  int profile_asked() const { return profile_asked_; }                      // calls of SendProfile
  int slices() const { return slices_; }                                    // of its time for training, so far
  placement::LayerCosts layer_costs() const { return layer_costs_.Get(); }  // of the last plan
  std::vector<batching::RankMasks> masks() const { return masks_.Get(); }   // so far
  // Sets how long a step takes from now on.  Call on the engine's thread.
  void set_step_ms(int ms) { step_ms_ = ms; }
  // Sends `count` more answers, then holds the others back; -1 = sends all.
  void Allow(int count) {
    answers_.Change([&](Answers* answers) {
      answers->allowed = count;
      Send(answers);
    });
  }
  // Waits until the worker holds answers back.
  void AwaitHeld() {
    ASSERT_TRUE(answers_.Await([](const Answers& answers) { return !answers.waiting.empty(); }));
  }
  absl::Status AwaitClosed() {
    closed_.Await([](const absl::Status& status) { return !status.ok(); });
    return closed_.Get();
  }

  Script script;

 private:
  struct Answer {
    int64_t epoch;
    int64_t step;
    batching::RankResult result;
  };
  struct Answers {
    int allowed = -1;
    std::vector<Answer> waiting;
    std::set<int64_t> masked;  // steps that await masks
  };

  static void CountItems(const std::vector<batching::StepItem>& items, batching::RankResult* result) {
    std::vector<int64_t> decoded(result->expert_counts.size(), 0);
    result->expert_counts = decoded;
    for (const batching::StepItem& item : items) {
      result->expert_counts[0] += item.num_query;
      if (!item.init) decoded[0] += item.num_query;
    }
    if (decoded[0] > 0) result->decode_expert_counts = decoded;
  }
  void Send(Answers* answers) {
    while (!answers->waiting.empty() && answers->allowed != 0 &&
           !answers->masked.contains(answers->waiting.front().step)) {
      if (answers->allowed > 0) --answers->allowed;
      Answer answer = std::move(answers->waiting.front());
      answers->waiting.erase(answers->waiting.begin());
      engine_->OnStepResult(id_, answer.epoch, answer.step, std::move(answer.result));
    }
  }

  const WorkerId id_;
  LinkEvents* const engine_;
  std::map<batching::SlotId, int32_t> outputs_;  // so far, of each slot
  Watched<std::vector<batching::RankMasks>> masks_;
  std::atomic<int> profile_asked_{0}, slices_{0}, step_ms_{0};
  Watched<placement::LayerCosts> layer_costs_;
  Watched<Answers> answers_;
  Watched<absl::Status> closed_;
};

}  // namespace switchyard::server
