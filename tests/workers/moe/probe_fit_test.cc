#include "workers/moe/popularity/probe_fit.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "workers/moe/popularity/ridge_probe.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

constexpr int kLayers = 3;
constexpr int64_t kHidden = 6, kExperts = 4;

class ProbeFitTest : public testing::Test {
 protected:
  Tensor Random(int64_t rows, int64_t columns) {
    std::normal_distribution<double> normal;
    Tensor tensor(DType::kF64, {rows, columns});
    for (int64_t i = 0; i < rows * columns; ++i) tensor.view().data<double>()[i] = normal(random_);
    return tensor;
  }
  struct Layer {
    Tensor x, logits;
  };
  std::vector<Layer> RandomPass(int64_t rows) {
    std::vector<Layer> layers;
    for (int layer = 0; layer < kLayers; ++layer) layers.push_back({Random(rows, kHidden), Random(rows, kExperts)});
    return layers;
  }
  // After an hour without passes.
  void Run(ProbeFit* fit, const std::vector<Layer>& layers, absl::Duration takes = absl::Seconds(1)) {
    now_ += absl::Hours(1);
    fit->Begin(layers[0].x.view().dim(0), now_);
    now_ += takes;
    for (int layer = 0; layer < static_cast<int>(layers.size()); ++layer) {
      const Layer& one = layers[static_cast<size_t>(layer)];
      ASSERT_TRUE(fit->OnGate(stream_, layer, one.x, one.logits, now_).ok());
    }
  }
  ProbeFitOptions Options(double share) {
    return {.num_layers = kLayers, .num_experts = kExperts, .hidden = kHidden, .share = share};
  }

  std::mt19937 random_{3};
  ThreadPool pool_{2};
  const Stream stream_ = Stream::OnCpu(&pool_);
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(ProbeFitTest, EveryRowOfAProfilingRunGoesIntoTheFitOfItsLayers) {
  ProbeFit fit(Options(1));
  RidgeProbe first(kHidden, kExperts, 2), second(kHidden, kExperts, 1);
  for (const int64_t rows : {20, 1, 33}) {
    const std::vector<Layer> pass = RandomPass(rows);
    Run(&fit, pass);
    ASSERT_TRUE(first.Add(stream_, pass[0].x, {pass[1].logits, pass[2].logits}).ok());
    ASSERT_TRUE(second.Add(stream_, pass[1].x, {pass[2].logits}).ok());
  }
  EXPECT_EQ(fit.num_rows(), 54);
  const std::vector<popularity::ProbeMap> maps = fit.SolveNow(stream_);
  ASSERT_EQ(maps.size(), 3u);
  const struct {
    const RidgeProbe* probe;
    int layer, target;
  } kWanted[] = {{&first, 0, 0}, {&first, 0, 1}, {&second, 1, 0}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(maps[i].layer, kWanted[i].layer);
    EXPECT_EQ(maps[i].ahead, kWanted[i].target + 1);
    EXPECT_EQ(maps[i].num_rows, 54);
    const absl::StatusOr<Tensor> wanted = kWanted[i].probe->Solve(stream_, kWanted[i].target);
    ASSERT_TRUE(wanted.ok());
    for (size_t v = 0; v < maps[i].values.size(); ++v)
      EXPECT_EQ(maps[i].values[v], static_cast<float>(wanted->view().data<double>()[v]));
  }
}

TEST_F(ProbeFitTest, TooFewRowsAreNoMap) {
  ProbeFit fit(Options(1));
  Run(&fit, RandomPass(kHidden));
  EXPECT_TRUE(fit.SolveNow(stream_).empty());
}

TEST_F(ProbeFitTest, AShareOfNoTimeAddsNoRows) {
  ProbeFit fit(Options(0.02));
  Run(&fit, RandomPass(64), absl::ZeroDuration());
  const int64_t to_measure = fit.num_rows();
  EXPECT_GE(to_measure, 1);
  EXPECT_LT(to_measure, 64);
  for (int pass = 0; pass < 10; ++pass) Run(&fit, RandomPass(64), absl::ZeroDuration());
  EXPECT_EQ(fit.num_rows(), to_measure);
  // Pauses leave none; long passes do for all that a pass may add.
  for (int pass = 0; pass < 3; ++pass) Run(&fit, RandomPass(64), absl::Hours(1));
  EXPECT_GT(fit.num_rows(), to_measure);
}

TEST_F(ProbeFitTest, EnoughRowsAreSolvedBesideTheSteps) {
  ProbeFit fit(Options(1));
  std::vector<popularity::ProbeMap> maps;
  for (int pass = 0; pass < 9; ++pass) Run(&fit, RandomPass(256));
  for (const absl::Time limit = absl::Now() + absl::Seconds(20); maps.empty() && absl::Now() < limit;)
    maps = fit.TakeSolved();
  ASSERT_EQ(maps.size(), 3u);
  // Of the pass that goes on beside it what was there when the layer's turn came.
  EXPECT_GE(maps[0].num_rows, 2048);
  EXPECT_LE(maps[0].num_rows, 9 * 256);
  EXPECT_TRUE(fit.TakeSolved().empty());
}

TEST_F(ProbeFitTest, ARowThatIsNotFiniteIsLeftOut) {
  ProbeFit fit(Options(1));
  std::vector<Layer> pass = RandomPass(8);
  pass[1].x.view().data<double>()[3] = std::numeric_limits<double>::quiet_NaN();
  Run(&fit, pass);
  Run(&fit, RandomPass(8));
  for (const popularity::ProbeMap& map : fit.SolveNow(stream_)) {
    for (const float value : map.values) EXPECT_TRUE(std::isfinite(value));
  }
  EXPECT_GE(fit.num_rows(), 8);
}

// A caller that has the rows elsewhere fetches those alone: a row that is not finite would be left out with its pass.
TEST_F(ProbeFitTest, RowsBeyondItsWindowNeedNotBeThere) {
  constexpr int64_t kRows = 300;
  ProbeFit fit(Options(0.02));
  EXPECT_EQ(fit.window().count, 0);
  std::vector<Layer> pass = RandomPass(kRows);
  fit.Begin(kRows, now_);
  const ProbeFit::Window window = fit.window();
  EXPECT_GT(window.count, 0);
  EXPECT_LT(window.count, kRows / 2);
  for (Layer& layer : pass) {
    for (Tensor* const tensor : {&layer.x, &layer.logits}) {
      for (int64_t t = 0; t < kRows; ++t) {
        if (t >= window.first && t < window.first + window.count) continue;
        *tensor->view().row<double>(t) = std::numeric_limits<double>::quiet_NaN();
      }
    }
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    const Layer& one = pass[static_cast<size_t>(layer)];
    ASSERT_TRUE(fit.OnGate(stream_, layer, one.x, one.logits, now_).ok());
  }
  EXPECT_GT(fit.num_rows(), 0);
}

TEST_F(ProbeFitTest, AModelOfOneLayerHasNothingToFit) {
  ProbeFitOptions options = Options(1);
  options.num_layers = 1;
  ProbeFit fit(options);
  std::vector<Layer> pass = RandomPass(4);
  pass.resize(1);
  Run(&fit, pass);
  EXPECT_EQ(fit.num_rows(), 0);
  EXPECT_TRUE(fit.SolveNow(stream_).empty());
}

}  // namespace
}  // namespace switchyard::moe
