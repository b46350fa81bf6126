// The closed formula by hand, and beside the event simulator on random layers.
#include "scheduler/pipeline/chunk_model.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "gtest/gtest.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/simulator/event_simulator.h"

namespace switchyard::pipeline {
namespace {

TEST(TimeCurveTest, GoesOnBeyondItsPoints) {
  const TimeCurve curve({{10, 3}, {20, 5}, {40, 6}});
  EXPECT_DOUBLE_EQ(curve.At(10), 3);
  EXPECT_DOUBLE_EQ(curve.At(15), 4);
  EXPECT_DOUBLE_EQ(curve.At(30), 5.5);
  EXPECT_DOUBLE_EQ(curve.At(60), 7);
  EXPECT_DOUBLE_EQ(curve.At(0), 1);
  EXPECT_DOUBLE_EQ(TimeCurve({{10, 1}, {20, 5}}).At(5), 0);  // not below
  EXPECT_DOUBLE_EQ(TimeCurve({{10, 2}}).At(5), 1);
  EXPECT_DOUBLE_EQ(TimeCurve().At(5), 0);
}

TEST(ChunkModelTest, PhasesByHand) {
  const ChunkTimes times = {.dispatch = 2, .experts = 3, .combine = 1, .copy = 4};
  EXPECT_DOUBLE_EQ(PassSeconds(times, 1, CopyOrder::kNone, {}), 6);
  EXPECT_DOUBLE_EQ(PassSeconds(times, 1, CopyOrder::kBehindExperts, {}), 10);
  EXPECT_DOUBLE_EQ(PassSeconds(times, 2, CopyOrder::kNone, {}), 2 + 3 + 3 + 1);
  EXPECT_DOUBLE_EQ(PassSeconds(times, 4, CopyOrder::kNone, {}), 2 + 3 + 2 * 3 + 3 + 1);
  EXPECT_DOUBLE_EQ(PassSeconds(times, 4, CopyOrder::kBehindExperts, {}), 2 + 3 + 2 * 4 + 4 + 4);
  EXPECT_DOUBLE_EQ(PassSeconds(times, 4, CopyOrder::kBeforeExperts, {}), 4 + 4 + 2 * 4 + 3 + 1);
  // Beside products all-to-alls take twice as long, the first and the last have none beside them.
  EXPECT_DOUBLE_EQ(PassSeconds(times, 4, CopyOrder::kNone, {.all_to_all = 0.5}), 2 + 4 + 2 * 6 + 3 + 1);
  EXPECT_DOUBLE_EQ(PassSeconds(times, 3, CopyOrder::kNone, {.experts = 0.75}), 2 + 4 + 4 + 4 + 1);
}

constexpr LayerLoad kLoad = {
    .dispatch_bytes = 100, .combine_bytes = 100, .rows = 100, .input_bytes = 100, .hidden_bytes = 100};

LayerTimes Times(double latency, double all_to_all, double experts, const BesideSpeeds& beside = {}) {
  const auto line = [&](double seconds) { return TimeCurve({{1, latency + seconds / 100}, {100, latency + seconds}}); };
  return {.all_to_all = line(all_to_all), .experts = line(experts), .copy = line(1), .beside = beside};
}

TEST(ChunkModelTest, ChoosesMoreChunksTheLessTheyCost) {
  EXPECT_EQ(ChunkModel(Times(0, 10, 10), kLoad, {}).Choose(8), 8);
  EXPECT_EQ(ChunkModel(Times(1, 10, 10), kLoad, {}).Choose(8), 2);  // 60 s; 1: 77, 3: 60.7
  EXPECT_EQ(ChunkModel(Times(0.5, 10, 10), kLoad, {}).Choose(8), 3);
  EXPECT_EQ(ChunkModel(Times(10, 10, 10), kLoad, {}).Choose(8), 1);
  EXPECT_EQ(ChunkModel(Times(0, 10, 10), kLoad, {}).Choose(1), 1);
  // Of equal ones the fewest: nothing to hide.
  EXPECT_EQ(ChunkModel(Times(0, 0, 10), kLoad, {}).Choose(8), 1);
}

TEST(ChunkModelTest, NoOverlapWhereOneHalvesTheOther) {
  EXPECT_EQ(ChunkModel(Times(0, 10, 10, {.all_to_all = 0.5}), kLoad, {}).Choose(8), 1);
  EXPECT_EQ(ChunkModel(Times(0, 10, 10, {.experts = 0.5}), kLoad, {}).Choose(8), 1);
  EXPECT_GT(ChunkModel(Times(0, 10, 10, {.all_to_all = 0.9, .experts = 0.9}), kLoad, {}).Choose(8), 1);
}

TEST(ChunkModelTest, StrategiesAddToBackward) {
  const auto seconds = [](InputRestore input, HiddenRestore hidden) {
    return ChunkModel(Times(0, 10, 10), kLoad, {.input = input, .hidden = hidden}).Seconds(1);
  };
  const double kept = seconds(InputRestore::kKeep, HiddenRestore::kKeep);
  EXPECT_DOUBLE_EQ(kept, 10 + 10 + 10 + 10 + 20 + 10);
  EXPECT_DOUBLE_EQ(seconds(InputRestore::kResend, HiddenRestore::kKeep), kept + 10);
  EXPECT_DOUBLE_EQ(seconds(InputRestore::kKeep, HiddenRestore::kRecompute), kept + 5);
  EXPECT_DOUBLE_EQ(seconds(InputRestore::kResend, HiddenRestore::kRecompute), kept + 15);       // S4
  EXPECT_NEAR(seconds(InputRestore::kOffload, HiddenRestore::kRecompute), kept + 5 + 2, 1e-9);  // S3
  EXPECT_NEAR(seconds(InputRestore::kOffload, HiddenRestore::kOffload), kept + 2 * 2.0, 1e-1);  // S1
  EXPECT_NEAR(seconds(InputRestore::kResend, HiddenRestore::kOffload), kept + 10 + 2, 1e-9);    // S2
}

// A pass of the builder's program on one rank, whose collectives take their time.  Weights' gradients take half of the
// products of backward, as hidden rows again a fifth.
double Simulated(const ChunkTimes& times, int chunks, const RestoreStrategy& restore, Pass pass) {
  const MoeSchedule schedule =
      BuildExpertParallel({.micro_batches = chunks, .in_turn = true, .trains = true, .restore = restore});
  const bool forward = pass == Pass::kForward, again = restore.hidden == HiddenRestore::kRecompute;
  const int copies = (restore.input == InputRestore::kOffload) + (restore.hidden == HiddenRestore::kOffload);
  simulator::SimInput input;
  input.ranks.resize(1);
  for (const MicroOp& op : forward ? schedule.forward : schedule.backward) {
    simulator::SimOp sim = {.deps = op.deps};
    if (op.kind == MicroOpKind::kExpert || op.kind == MicroOpKind::kWeights) {
      sim.seconds = times.experts * (forward ? 1 : again ? 0.4 : 0.5);
    } else if (op.kind == MicroOpKind::kRecompute) {
      sim.seconds = times.experts * 0.2;
    } else if (IsCopying(op.kind)) {
      sim.kind = simulator::SimOpKind::kCopy;
      sim.seconds = times.copy / copies;
    } else if (IsCommunicating(op.kind)) {
      const bool resends = !forward && restore.input == InputRestore::kResend;
      sim.kind = simulator::SimOpKind::kCollective;
      sim.collective = static_cast<int>(input.collectives.size());
      input.collectives.push_back(
          {.latency = op.kind == MicroOpKind::kCombine ? times.combine : times.dispatch / (resends ? 2 : 1)});
    }
    input.ranks[0].push_back(std::move(sim));
  }
  const absl::StatusOr<simulator::SimResult> result = simulator::Simulate(input);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->seconds : 0;
}

// The closed time over the simulated: on average, at least and at most.
struct Ratios {
  double sum = 0, least = HUGE_VAL, most = 0;
  int cases = 0;
  void Add(double ratio) {
    sum += ratio;
    least = std::min(least, ratio);
    most = std::max(most, ratio);
    ++cases;
  }
};

Ratios Compare(const RestoreStrategy& restore, Pass pass) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> seconds(0.1, 10);
  const CopyOrder order = !restore.offloads()      ? CopyOrder::kNone
                          : pass == Pass::kForward ? CopyOrder::kBehindExperts
                                                   : CopyOrder::kBeforeExperts;
  Ratios ratios;
  for (int i = 0; i < 300; ++i) {
    const ChunkTimes times = {
        .dispatch = seconds(random), .experts = seconds(random), .combine = seconds(random), .copy = seconds(random)};
    for (const int chunks : {1, 2, 3, 4, 8}) {
      ratios.Add(PassSeconds(times, chunks, order, {}) / Simulated(times, chunks, restore, pass));
    }
  }
  return ratios;
}

// Where nothing slows another down.  Kept rows: forward takes what the simulator says; in backward weights' gradients
// run beneath a combine, which the formula has not.  It is below the simulator where chunks wait for the one slot of
// hidden rows to be copied, or a dispatch for the one that sends rows again.
TEST(ChunkModelTest, BesideTheSimulator) {
  for (const InputRestore input : {InputRestore::kKeep, InputRestore::kOffload, InputRestore::kResend}) {
    for (const HiddenRestore hidden : {HiddenRestore::kKeep, HiddenRestore::kOffload, HiddenRestore::kRecompute}) {
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(input) << static_cast<int>(hidden)
                                        << static_cast<int>(pass));
        const RestoreStrategy restore = {.input = input, .hidden = hidden};
        const Ratios ratios = Compare(restore, pass);
        const double mean = ratios.sum / ratios.cases;
        const bool resends = input == InputRestore::kResend && pass == Pass::kBackward;
        EXPECT_GE(ratios.least, hidden == HiddenRestore::kOffload || resends ? 0.5 : 1 - 1e-9);
        EXPECT_GT(mean, 0.95);
        EXPECT_LT(mean, restore.offloads() ? 1.21 : pass == Pass::kForward ? 1 + 1e-9 : 1.09);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard::pipeline
