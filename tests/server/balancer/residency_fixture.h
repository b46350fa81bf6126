// The slow loop with a host that only writes down what it is told, and steps that count a skew.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/balancer/residency_loop.h"

namespace switchyard {

inline constexpr int kLayers = 2, kExperts = 4, kRanks = 2, kPeriod = 3;
inline constexpr MoveCosts kCosts = {.copy_ps = 7, .row_ps = 8, .layer_ps = 9};

class ResidencyLoopTest : public testing::Test, public ResidencyLoop::Host {
 protected:
  ResidencyLoopTest() {
    Make({.mode = PlacementMode::kAgreed, .spare_slots = 1, .replica_slots = 1, .rebalance_steps = kPeriod});
  }

  void Make(const PlacementSettings& settings, int devices = kRanks) {
    loop = std::make_unique<ResidencyLoop>(settings, this);
    begun = loop->Begin({.layers = kLayers, .experts = kExperts, .devices = devices}, kCosts);
    loop->GroupUp();
  }

  // --- ResidencyLoop::Host ---
  void Plan(PlanOrder order) override {
    problem = ProblemOf(order);
    log.push_back(absl::StrCat("plan ", problem.next_epoch));
  }
  void Prepare(const PlacementStage& stage) override {
    prepared = stage;
    log.push_back(absl::StrCat("prepare ", stage.epoch));
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
    StepResult result;
    result.step = step;
    result.ranks.resize(kRanks);
    for (RankResult& rank : result.ranks) {
      rank.expert_rows = 20;
      rank.timings.expert_seconds = 20e-6;
      rank.timings.total_seconds = 100e-6;
    }
    ASSERT_TRUE(census.Add(Phase::kDecode, {14, 2, 2, 2, 14, 2, 2, 2}).ok());
    meter.Add(result, census);
    loop->StepDone(step, census, &meter, now);
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }
  // Two stages: a replica of (0, 0) on rank 1; then (1, 2) goes from rank 1 to rank 0.
  ResidencyPlan TwoStages() const {
    ResidencyPlan plan;
    plan.epoch = problem.next_epoch;
    plan.stages = {{.arrivals = {{MoveKind::kCopy, 0, 0, 1, 2}}, .departures = {}},
                   {.arrivals = {{MoveKind::kCopy, 1, 2, 0, 2}}, .departures = {{MoveKind::kRelease, 1, 2, 1, 0}}}};
    plan.layers = problem.present;
    for (const ResidencyStage& stage : plan.stages) {
      EXPECT_TRUE(ApplyStage(stage, problem.limits, &plan.layers).ok());
    }
    plan.copies = 2;
    plan.bytes = 2000;
    return plan;
  }
  // Until a plan of two stages is there and the first is being prepared.
  void StartPlan() {
    Steps(kPeriod);
    Planned(TwoStages());
  }
  void Planned(ResidencyPlan plan) {
    loop->Planned(StagePlan(std::move(plan), ShareLayers(problem.present), problem.limits), now);
  }
  void AllPrepared() {
    const int64_t epoch = prepared.epoch;
    for (int rank = 0; rank < kRanks; ++rank) loop->Prepared(rank, epoch, "", now);
  }
  void AllReleased() {
    const int64_t epoch = prepared.epoch;
    for (int rank = 0; rank < kRanks; ++rank) loop->Released(rank, epoch, now);
  }
  // Prepared, committed, run, released.
  void RunStage() {
    AllPrepared();
    Step();
    AllReleased();
  }
  int64_t Plans(PlanOutcome outcome) const { return loop->view().plans[static_cast<size_t>(outcome)]; }
  const Placement& LayerAt(int layer) const { return loop->view().layers[static_cast<size_t>(layer)]->placement; }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  ExpertCensus census{{.num_layers = kLayers, .num_experts = kExperts, .top_k = 2}, 100000};
  PlacementMeter meter{1000, 0};
  std::unique_ptr<ResidencyLoop> loop;
  GroupPlacement begun;
  ResidencyProblem problem;
  PlacementStage prepared;
  std::vector<std::string> log;
  int64_t step = 0;
};

}  // namespace switchyard
