// Whole steps of a group whose experts change their places: the same tokens in every mode, with forecasts and
// transfers, as with one rank that has all of them.
#include <memory>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"
#include "workers/moe/popularity/row_load_predictor.h"

namespace switchyard::model {
namespace {

// Enough steps for some copies.
int32_t NumTokens() { return DeviceIsEmulated() ? 13 : 16; }

// Says of the next layer what this one's rows chose, with some of it moved elsewhere.
class FakeLoadPredictor : public moe::LayerLoadPredictor {
 public:
  explicit FakeLoadPredictor(const ModelConfig& config)
      : num_experts_(config.num_experts), num_layers_(static_cast<int>(config.num_moe_layers())) {}
  absl::StatusOr<absl::Span<const placement::LayerEstimate>> Begin(const moe::ForecastPass& pass) override {
    num_rows_ = pass.num_rows;
    EXPECT_LE(pass.num_decode_rows, pass.num_rows);
    EXPECT_EQ(static_cast<int64_t>(pass.token_ids.size()), pass.num_rows);
    return absl::Span<const placement::LayerEstimate>();
  }
  absl::StatusOr<absl::Span<const placement::LayerEstimate>> OnGate(const moe::MoeContext&,
                                                                    const moe::LayerContext& layer) override {
    EXPECT_EQ(layer.topk_on_host.dim(0), num_rows_);
    popularity_.assign(static_cast<size_t>(num_experts_), 0);
    const int32_t* const idx = layer.topk_on_host.empty() ? nullptr : layer.topk_on_host.data<int32_t>();
    for (int64_t i = 0; i < layer.topk_on_host.NumElements(); ++i) {
      popularity_[random_() % 4 == 0 ? random_() % popularity_.size() : static_cast<size_t>(idx[i])] +=
          popularity::kRow;
    }
    reported_ = {{(layer.index + 1) % num_layers_, popularity_}};
    return absl::MakeConstSpan(reported_);
  }

 private:
  const int64_t num_experts_;
  const int num_layers_;
  std::mt19937 random_{7};
  int64_t num_rows_ = 0;
  popularity::Popularity popularity_;
  std::vector<placement::LayerEstimate> reported_;
};

// As a worker's.
std::unique_ptr<moe::LayerLoadPredictor> LiveLoadPredictor(const Model& model) {
  moe::RowLoadPredictorOptions options;
  options.model = "fixture";
  options.shape = {.num_layers = static_cast<int>(model.config().num_moe_layers()),
                   .num_experts = static_cast<int>(model.config().num_experts),
                   .top_k = static_cast<int>(model.config().top_k)};
  for (const LayerWeights& layer : model.weights().layers) {
    if (layer.moe.has_value()) options.routers.push_back(&layer.moe->router);
  }
  options.hidden = model.config().hidden;
  options.dtype = model.dtype();
  options.probe_share = 0.5;
  return std::make_unique<moe::RowLoadPredictor>(options);
}

class PlacedRunnerTest : public testing::Test {
 protected:
  PlacedRunnerTest() : fixture_(LoadFixture("qwen3-qknorm")) {
    for (const GreedyGolden& golden : fixture_.greedy) {
      if (golden.prompt.size() < 300) prompts_.push_back(golden.prompt);
    }
    if (DeviceIsEmulated()) prompts_.resize(2);
    expected_ = RankGroup(fixture_.dir, {.dtype = DType::kBf16}).Greedy(prompts_, NumTokens());
  }
  static RankGroupOptions Options(placement::PlacementMode mode, int world) {
    RankGroupOptions options;
    options.dtype = DType::kBf16;
    options.world = world;
    options.chunk = 40;
    options.batch = 5;
    options.placement = mode;
    options.load_predictor = [](const Model& model) { return std::make_unique<FakeLoadPredictor>(model.config()); };
    return options;
  }

  const Fixture fixture_;
  std::vector<std::vector<int32_t>> prompts_, expected_;
};

TEST_F(PlacedRunnerTest, GreedyTokensInEveryMode) {
  int64_t of_agreed = 0;
  for (const placement::PlacementMode mode :
       {placement::PlacementMode::kStaticSpare, placement::PlacementMode::kLina, placement::PlacementMode::kAgreed,
        placement::PlacementMode::kNoEstimate, placement::PlacementMode::kNoFinetune}) {
    for (const int world : {1, 2, 4}) {
      if (!HasDevices(world)) continue;
      RankGroup group(fixture_.dir, Options(mode, world));
      EXPECT_EQ(group.Greedy(prompts_, NumTokens()), expected_) << NameOf(mode) << " on " << world;
      int64_t copies = 0;
      for (int rank = 0; rank < world; ++rank) {
        const moe::ReplicatedExpertsCounters counters = group.experts(rank).counters();
        copies += counters.copies[static_cast<size_t>(moe::CopyReason::kDemand)] +
                  counters.copies[static_cast<size_t>(moe::CopyReason::kPrefetch)];
        for (int layer = 0; layer < group.config().num_moe_layers(); ++layer) {
          EXPECT_EQ(group.balancer(rank).placement(layer), group.balancer(0).placement(layer));
        }
      }
      // (In some worlds the replicas that agreed begins with are enough for these rows.)
      if (mode == placement::PlacementMode::kAgreed) {
        of_agreed += copies;
      } else {
        EXPECT_EQ(copies > 0, world > 1 && mode != placement::PlacementMode::kStaticSpare)
            << NameOf(mode) << " on " << world;
      }
      EXPECT_GT(group.last_timings().decide_seconds, 0);
    }
  }
  EXPECT_EQ(of_agreed > 0, HasDevices(2));
}

// Estimates come from the rows where they are; ranks exchange integers, and decide alike by them.
TEST_F(PlacedRunnerTest, GreedyTokensWithEstimatesOfTheRows) {
  for (const int world : {1, 2}) {
    if (!HasDevices(world)) continue;
    RankGroupOptions options = Options(placement::PlacementMode::kAgreed, world);
    std::vector<const moe::RowLoadPredictor*> load_predictors;
    options.load_predictor = [&](const Model& model) {
      auto load_predictor = LiveLoadPredictor(model);
      load_predictors.push_back(static_cast<const moe::RowLoadPredictor*>(load_predictor.get()));
      return load_predictor;
    };
    RankGroup group(fixture_.dir, options);
    EXPECT_EQ(group.Greedy(prompts_, NumTokens()), expected_) << world;
    ASSERT_EQ(static_cast<int>(load_predictors.size()), world);
    for (const moe::RowLoadPredictor* const load_predictor : load_predictors) {
      EXPECT_GT(load_predictor->phase(popularity::Phase::kPrefill)
                    .score(popularity::LivePredictor::kGateAhead, 1, 1)
                    .num_batches(),
                0);
      EXPECT_GT(load_predictor->fit()->num_rows(), 0);
    }
  }
}

// In steps that decide nothing rows go to their experts' homes, whose weights stay: devices record those of decodes.
TEST_F(PlacedRunnerTest, StepsThatDecideNothingBetweenOthers) {
  for (const int world : {1, 2, 4}) {
    if (!HasDevices(world)) continue;
    RankGroupOptions options = Options(placement::PlacementMode::kAuto, world);
    options.load_predictor = nullptr;
    options.every_other_step = true;
    options.in_flight = world == 2 ? ModelRunner::kMaxStarted : 1;
    options.capture = world == 2;
    RankGroup group(fixture_.dir, options);
    EXPECT_EQ(group.Greedy(prompts_, NumTokens()), expected_) << world;
    for (int rank = 0; rank < world; ++rank) {
      const DeviceSteps* const steps = group.runner(rank).device_steps();
      if (steps == nullptr) continue;
      EXPECT_GT(steps->counters().replayed, 0) << rank << " of " << world;
    }
  }
}

TEST_F(PlacedRunnerTest, TransfersAndMicroBatches) {
  if (!HasDevices(4)) GTEST_SKIP() << "skipped: needs 4 devices";
  RankGroupOptions options = Options(placement::PlacementMode::kAgreed, 4);
  options.batch = 3;
  if (TestDevice().is_cpu()) {  // devices give away no rows
    options.min_rebalance_rows = 1;
    EXPECT_EQ(RankGroup(fixture_.dir, options).Greedy(prompts_, NumTokens()), expected_);
  }
  options.min_rebalance_rows = 0;
  options.micro_batches = 3;
  EXPECT_EQ(RankGroup(fixture_.dir, options).Greedy(prompts_, NumTokens()), expected_);
}

}  // namespace
}  // namespace switchyard::model
