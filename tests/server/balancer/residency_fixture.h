// The background balancer with a host that only records calls, and steps with skewed counts.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/balancer/background_balancer.h"
#include "tests/server/balancer/share_layers.h"

namespace switchyard::server {

inline constexpr int kLayers = 2, kExperts = 4, kRanks = 2, kPeriod = 3;
inline constexpr placement::MoveCosts kCosts = {.copy_ps = 7, .row_ps = 8, .layer_ps = 9};

class BackgroundBalancerTest : public testing::Test, public BackgroundBalancer::Host {
 protected:
  BackgroundBalancerTest() {
    Make({.mode = placement::PlacementMode::kAgreed, .spare_slots = 1, .replica_slots = 1, .rebalance_steps = kPeriod});
  }

  void Make(const placement::PlacementSettings& settings, int devices = kRanks) {
    loop = std::make_unique<BackgroundBalancer>(settings, this);
    begun = loop->Begin({.layers = kLayers, .experts = kExperts, .devices = devices}, kCosts);
    loop->GroupUp();
  }

  // --- BackgroundBalancer::Host ---
  void Plan(PlanOrder order) override {
    problem = ProblemOf(order);
    log.push_back(absl::StrCat("plan ", problem.next_epoch));
  }
  void Prepare(const placement::Migration& migration) override {
    prepared = migration;
    log.push_back(absl::StrCat("prepare ", migration.epoch));
  }
  void Drop(int64_t epoch) override { log.push_back(absl::StrCat("drop ", epoch)); }
  void Release(int64_t epoch) override { log.push_back(absl::StrCat("release ", epoch)); }
  void BreakGroup(const std::string& why) override {
    log.push_back("break: " + why);
    loop->GroupDown(why, now);
  }

  // One step: planned, run, and counted.  Most rows are of expert 0.
  void Step() {
    loop->StepPlanned(++step, now);
    batching::StepResult result;
    result.step = step;
    result.ranks.resize(kRanks);
    for (batching::RankResult& rank : result.ranks) {
      rank.expert_rows = 20;
      rank.timings.expert_seconds = 20e-6;
      rank.timings.total_seconds = 100e-6;
    }
    ASSERT_TRUE(load_stats.Add(popularity::Phase::kDecode, {14, 2, 2, 2, 14, 2, 2, 2}).ok());
    meter.Add(result, load_stats);
    loop->StepDone(step, load_stats, &meter, now);
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }
  // Two migrations: a replica of (0, 0) on rank 1; then (1, 2) goes from rank 1 to rank 0.
  placement::ResidencyPlan TwoMigrations() const {
    placement::ResidencyPlan plan;
    plan.epoch = problem.next_epoch;
    plan.migrations = {{.arrivals = {{0, 0, 1, 2}}, .departures = {}},
                       {.arrivals = {{1, 2, 0, 2}}, .departures = {{1, 2, 1, 0}}}};
    plan.layers = problem.present;
    for (const placement::ResidencyMigration& migration : plan.migrations) {
      EXPECT_TRUE(placement::ApplyMigration(migration, problem.layer_slots, &plan.layers).ok());
    }
    plan.copies = 2;
    plan.bytes = 2000;
    return plan;
  }
  // Runs until a plan of two migrations is made and its first migration is being prepared.
  void StartPlan() {
    Steps(kPeriod);
    Planned(TwoMigrations());
  }
  void Planned(placement::ResidencyPlan plan) {
    loop->Planned(MakePendingMigration(std::move(plan), ShareLayers(problem.present), problem.layer_slots), now);
  }
  void AllPrepared() {
    const int64_t epoch = prepared.epoch;
    for (int rank = 0; rank < kRanks; ++rank) loop->Prepared(rank, epoch, "", now);
  }
  void AllReleased() {
    const int64_t epoch = prepared.epoch;
    for (int rank = 0; rank < kRanks; ++rank) loop->Released(rank, epoch, now);
  }
  // Runs a migration: prepared, committed, used by a step, released.
  void RunMigration() {
    AllPrepared();
    Step();
    AllReleased();
  }
  int64_t Plans(PlanOutcome outcome) const { return loop->view().plans[static_cast<size_t>(outcome)]; }
  const placement::Placement& LayerAt(int layer) const { return *loop->view().layers[static_cast<size_t>(layer)]; }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  popularity::ExpertLoadStats load_stats{{.num_layers = kLayers, .num_experts = kExperts, .top_k = 2}, 100000};
  PlacementCostMonitor meter{1000, 0};
  std::unique_ptr<BackgroundBalancer> loop;
  placement::GroupPlacement begun;
  placement::ResidencyProblem problem;
  placement::Migration prepared;
  std::vector<std::string> log;
  int64_t step = 0;
};

}  // namespace switchyard::server
