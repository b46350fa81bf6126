// A worker group with fake workers, a recording listener and a clock of its own.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/fleet/worker_group.h"

namespace switchyard::server {

// A fake worker that records its commands.
class FakeWorker final : public WorkerClient {
 public:
  void Join(const fleet::RankAssignment& assignment) override { assignments.push_back(assignment); }
  void Execute(const batching::StepPlan& plan, int rank, absl::Duration limit) override {
    plans.emplace_back(plan.step, rank);
    limits.push_back(limit);
  }
  void SendMasks(const batching::StepMasks& sent, int rank) override { masks.emplace_back(sent.step, rank); }
  void AbortGroup(int64_t epoch, const std::string& reason) override { aborts.emplace_back(epoch, reason); }
  void SendProfile(int64_t, int64_t, int64_t) override {}
  void Close(const absl::Status& status) override { closed = status; }

  std::vector<fleet::RankAssignment> assignments;
  std::vector<std::pair<int64_t, int>> plans;  // (step, rank)
  std::vector<std::pair<int64_t, int>> masks;  // likewise
  std::vector<absl::Duration> limits;
  std::vector<std::pair<int64_t, std::string>> aborts;  // (epoch, reason)
  absl::Status closed;
};

inline fleet::WorkerInfo Info(const std::string& incarnation, int local_index = -1) {
  fleet::WorkerInfo info;
  info.incarnation = incarnation;
  info.host = "here";
  info.pid = 100 + local_index;
  info.device = "cpu";
  info.isa = "avx2";
  info.dtype = "fp32";
  info.weights_hash = "h1";
  info.join_token = "secret";
  info.local_index = local_index;
  info.num_layers = 4;
  info.context = 100;
  return info;
}

class GroupTest : public testing::Test, public WorkerGroup::Listener {
 protected:
  void Make(int world, int local_workers = 0, const std::string& dtype = "auto") {
    WorkerGroup::Options options;
    options.world = world;
    options.local_workers = local_workers;
    options.dtype = dtype;
    options.encrypt_links = encrypt_links;
    options.tokens = {.shared = "secret", .local = local_token};
    group = std::make_unique<WorkerGroup>(options, this);
  }

  absl::Status Register(WorkerId id, fleet::WorkerInfo info) {
    workers[id] = std::make_shared<FakeWorker>();
    return group->Register(id, workers[id], std::move(info), now);
  }

  // Ids 1 … world, incarnations a, b, …
  void Form(int world) {
    Make(world);
    for (int i = 0; i < world; ++i)
      ASSERT_TRUE(Register(i + 1, Info(std::string(1, static_cast<char>('a' + i)), i)).ok());
    MakeReady();
  }
  void MakeReady() {
    for (const auto& [id, member] : std::map(group->members()))
      group->Ready(id, {.epoch = group->epoch(), .num_kv_blocks = 10}, now);
    ASSERT_EQ(group->state(), WorkerGroup::State::kReady);
  }

  bool HasUnread(const fleet::WorkerInfo& info) override { return info.incarnation == unread_of; }

  // Lets time pass: the workers in `alive` send heartbeats, and the group ticks every 50 ms.
  void Pass(absl::Duration span, std::vector<WorkerId> alive) {
    for (const absl::Time end = now + span; now < end;) {
      now += absl::Milliseconds(50);
      for (WorkerId id : alive) group->Heartbeat(id, now);
      group->Tick(now);
    }
  }

  // `rows` on each rank.
  void Execute(int64_t step, int rows = 0) {
    batching::StepPlan plan;
    plan.step = step;
    plan.group_epoch = group->epoch();
    plan.ranks.resize(group->members().size());
    for (batching::RankPlan& rank : plan.ranks) rank.items.emplace_back().num_query = rows;
    group->Execute(plan, now);
  }
  void Answer(WorkerId id, int64_t step, uint64_t ledger = 7) {
    batching::RankResult result;
    result.ledger_hash = ledger;
    result.rows = id;
    group->Result(id, group->epoch(), step, std::move(result), now);
  }
  int RankOf(WorkerId id) const { return group->members().at(id).rank; }

  void OnEpoch(const std::string& store_token) override { tokens.push_back(store_token); }
  void OnForming(const std::vector<fleet::WorkerInfo>&) override {}
  void OnGroupUp(int64_t epoch, int world, int32_t blocks, const fleet::WorkerInfo& first) override {
    log.push_back(absl::StrCat("up ", epoch, " world ", world, " blocks ", blocks, " first ", first.incarnation,
                               first.experts_in_place ? " in place" : ""));
  }
  void OnGroupDown(const std::string& reason) override { log.push_back("down: " + reason); }
  void OnStepDone(const batching::StepResult& result) override {
    std::string text = absl::StrCat("step ", result.step);
    for (const batching::RankResult& rank : result.ranks) absl::StrAppend(&text, " ", rank.rows);
    log.push_back(text);
  }
  void OnFenced(const fleet::WorkerInfo& info) override {
    if (info.local_index >= 0) log.push_back(absl::StrCat("kill ", info.local_index, " ", info.pid));
  }

  std::string local_token = "secret";  // tests also use it as the shared token
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  std::unique_ptr<WorkerGroup> group;
  std::map<WorkerId, std::shared_ptr<FakeWorker>> workers;
  std::vector<std::string> tokens;
  bool encrypt_links = false;  // of the next Make
  std::string unread_of;       // incarnation of the worker whose messages are unread
  std::vector<std::string> log;
};

}  // namespace switchyard::server
