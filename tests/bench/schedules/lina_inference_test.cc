// By hand: two GPUs of an expert each, two layers; a row takes a second over a link and two in an expert.
#include "tests/bench/schedules/lina_inference.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::bench {
namespace {

using placement::PlacementMode;
using popularity::kRow;

constexpr double kDense = 10, kPlace = 6, kCheck = 1, kCopy = 3;

LinaSetup TwoGpus() {
  return {.cluster = {.ranks = 2, .ranks_per_node = 2, .rank_bytes_per_s = 1},
          .shape = {.num_layers = 2, .num_experts = 2, .top_k = 1},
          .slots = 2,
          .row_bytes = 1,
          .row_seconds = 2,
          .dense_seconds = kDense,
          .copy_seconds = kCopy,
          .place_seconds = kPlace,
          .check_seconds = kCheck};
}

// GPU 0 has 3 rows for expert 0 and one for expert 1, GPU 1 two each: 5 and 3 rows.
LinaLayerPlan Layer(std::vector<int64_t> estimate = {}) {
  return {.counts = {3, 1, 2, 2}, .estimate = std::move(estimate)};
}

LinaBatch Ran(PlacementMode mode, const std::vector<LinaLayerPlan>& plan) {
  absl::StatusOr<LinaInference> inference = LinaInference::Create(TwoGpus(), mode);
  EXPECT_TRUE(inference.ok()) << inference.status();
  const absl::StatusOr<LinaBatch> batch = inference->Run(plan);
  EXPECT_TRUE(batch.ok()) << batch.status();
  return batch.ok() ? *batch : LinaBatch();
}

TEST(LinaInferenceTest, StaticPlacementWaitsForTheBusiest) {
  const LinaBatch batch = Ran(PlacementMode::kStatic, {Layer(), Layer({kRow, 7 * kRow})});
  // Two rows over the fuller link, five in the expert, two back.
  constexpr double kLayer = 2 + 10 + 2;
  EXPECT_DOUBLE_EQ(batch.seconds, 2 * (kDense + kLayer));
  ASSERT_EQ(batch.layers.size(), 2U);
  EXPECT_DOUBLE_EQ(batch.layers[1].seconds, kLayer);
  // GPU 1 has computed after 6 and waits until 10.
  EXPECT_DOUBLE_EQ(batch.layers[1].exchange_seconds, 2 + 2 + 4.0 / 2);
}

TEST(LinaInferenceTest, BalancedGatesSendEqualParts) {
  EXPECT_DOUBLE_EQ(Ran(PlacementMode::kIdeal, {Layer(), Layer()}).seconds, 2 * (kDense + 2 + 8 + 2));
}

TEST(LinaInferenceTest, PhaseTwoIsShortWhereTheEstimateWasRight) {
  // Of two experts the two most popular are always the same ones.
  const double plain = Ran(PlacementMode::kNoFinetune, {Layer(), Layer({5 * kRow, 3 * kRow})}).seconds;
  EXPECT_DOUBLE_EQ(Ran(PlacementMode::kLina, {Layer(), Layer({5 * kRow, 3 * kRow})}).seconds, plain + kCheck);
  EXPECT_DOUBLE_EQ(Ran(PlacementMode::kLina, {Layer(), Layer()}).seconds,
                   Ran(PlacementMode::kStatic, {Layer(), Layer()}).seconds)
      << "nothing is checked where nothing was estimated";
}

TEST(LinaInferenceTest, WithoutEstimatesAllWaitForDeviceZero) {
  const std::vector<LinaLayerPlan> even = {{.counts = {2, 2, 2, 2}}, {.counts = {2, 2, 2, 2}}};
  EXPECT_DOUBLE_EQ(Ran(PlacementMode::kNoEstimate, even).seconds,
                   Ran(PlacementMode::kStatic, even).seconds + 2 * kPlace);
}

TEST(LinaInferenceTest, CopiesOfPhaseOneRunBesideAttention) {
  // Everything goes to expert 0, which the estimate says: it has both GPUs, and a copy hides behind attention.
  const std::vector<LinaLayerPlan> plan = {{.counts = {2, 2, 2, 2}},
                                           {.counts = {4, 0, 4, 0}, .estimate = {8 * kRow, 0}}};
  const LinaBatch batch = Ran(PlacementMode::kNoFinetune, plan);
  EXPECT_DOUBLE_EQ(batch.layers[1].seconds, 8);
  // The first layer's combine is over at 10 + 2 + 8 + 2, phase 1 at 10 + 2 + 6.
  EXPECT_DOUBLE_EQ(batch.seconds, kDense + 12 + kDense + 8);
}

TEST(LinaInferenceTest, CopiesThatAreLateAreWaitedFor) {
  LinaSetup setup = TwoGpus();
  setup.copy_seconds = 2 * kDense;
  absl::StatusOr<LinaInference> inference = LinaInference::Create(setup, PlacementMode::kNoFinetune);
  ASSERT_TRUE(inference.ok());
  const absl::StatusOr<LinaBatch> batch =
      inference->Run({{.counts = {2, 2, 2, 2}}, {.counts = {4, 0, 4, 0}, .estimate = {8 * kRow, 0}}});
  ASSERT_TRUE(batch.ok());
  EXPECT_DOUBLE_EQ(batch->seconds, kDense + 12 + 2 * kDense + 8);
}

TEST(LinaInferenceTest, PhasesMayTakeNoTime) {
  LinaSetup setup = TwoGpus();
  setup.place_seconds = setup.check_seconds = 0;
  absl::StatusOr<LinaInference> inference = LinaInference::Create(setup, PlacementMode::kLina);
  ASSERT_TRUE(inference.ok());
  const absl::StatusOr<LinaBatch> batch =
      inference->Run({{.counts = {2, 2, 2, 2}}, {.counts = {4, 0, 4, 0}, .estimate = {8 * kRow, 0}}});
  ASSERT_TRUE(batch.ok());
  EXPECT_DOUBLE_EQ(batch->seconds, kDense + 12 + kDense + 8);
}

TEST(LinaInferenceTest, OtherModesAreRefused) {
  EXPECT_EQ(LinaInference::Create(TwoGpus(), PlacementMode::kAgreed).status().message(),
            "Lina's inference: mode agreed");
}

}  // namespace
}  // namespace switchyard::bench
