#include "workers/moe/popularity/probe_fit.h"

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "workers/moe/popularity/hidden_probe.h"
#include "workers/moe/popularity/ridge_probe.h"
#include "workers/moe/popularity/text_context.h"
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

// Prompts' rows, behind two of decodes, are also fitted in the context of their texts.
TEST_F(ProbeFitTest, PromptsRowsAreAlsoFittedInContext) {
  ProbeFitOptions options = Options(1);
  options.in_context = true;
  EXPECT_EQ(ProbeFit::BytesOf(options) - ProbeFit::BytesOf(Options(1)), 8 * 13 * (13 + 2 * kExperts) * kLayers);
  ProbeFit fit(options);
  RidgeProbe first(2 * kHidden, kExperts, 2);
  for (const int64_t rows : {37, 2, 71}) {
    EXPECT_LE(fit.SolveNow(stream_).size(), 3u);
    const std::vector<Layer> pass = RandomPass(rows);
    std::vector<uint8_t> begins(static_cast<size_t>(rows - 2));
    for (size_t t = 0; t < begins.size(); t += 7) begins[t] = 1;
    fit.Begin(rows, now_, begins);
    for (int layer = 0; layer < kLayers; ++layer) {
      const Layer& one = pass[static_cast<size_t>(layer)];
      ASSERT_TRUE(fit.OnGate(stream_, layer, one.x, one.logits, now_).ok());
    }
    const Tensor features = WithContext(pass[0].x.view().Rows(2, rows - 2), begins, 0, rows - 2);
    ASSERT_TRUE(
        first.Add(stream_, features, {pass[1].logits.view().Rows(2, rows - 2), pass[2].logits.view().Rows(2, rows - 2)})
            .ok());
  }
  const std::vector<popularity::ProbeMap> maps = fit.SolveNow(stream_);
  ASSERT_EQ(maps.size(), 6u);
  EXPECT_FALSE(maps[2].in_context);
  EXPECT_EQ(maps[2].num_rows, 110);
  for (int target = 0; target < 2; ++target) {
    const popularity::ProbeMap& map = maps[static_cast<size_t>(3 + target)];
    EXPECT_TRUE(map.in_context);
    EXPECT_EQ(map.layer, 0);
    EXPECT_EQ(map.ahead, target + 1);
    EXPECT_EQ(map.num_rows, 104);
    const absl::StatusOr<Tensor> wanted = first.Solve(stream_, target);
    ASSERT_TRUE(wanted.ok());
    ASSERT_EQ(static_cast<int64_t>(map.values.size()), kExperts * map.WidthOf(kHidden));
    for (size_t v = 0; v < map.values.size(); ++v)
      EXPECT_EQ(map.values[v], static_cast<float>(wanted->view().data<double>()[v]));
  }
}

// One layer ahead, in context, where there are 32 rows a feature; also by the thread beside the steps.
TEST_F(ProbeFitTest, KeptRowsMakeANetworkOfTheMapInContext) {
  ProbeFitOptions options = Options(1);
  options.in_context = true;
  const int64_t sums = ProbeFit::BytesOf(options);
  options.kept_rows = 4096;
  EXPECT_EQ(ProbeFit::BytesOf(options) - sums, 4096 * 4 * (2 * kHidden + kExperts) * kLayers);
  ProbeFit fit(options);
  RidgeProbe ridge(2 * kHidden, kExperts, 2);
  HiddenProbe hidden(2 * kHidden, kExperts, options.kept_rows);
  std::vector<popularity::ProbeMap> beside;
  constexpr int64_t kPassRows = 512;
  std::vector<uint8_t> begins(kPassRows);
  begins[0] = 1;
  for (int pass = 0; pass < 5; ++pass) {
    std::vector<Layer> layers = RandomPass(kPassRows);
    // Bent: no linear map says it.
    for (int64_t t = 0; t < kPassRows; ++t)
      layers[1].logits.view().row<double>(t)[0] = 5 * std::abs(layers[0].x.view().row<double>(t)[0]);
    fit.Begin(kPassRows, now_, begins);
    for (int layer = 0; layer < kLayers; ++layer) {
      const Layer& one = layers[static_cast<size_t>(layer)];
      ASSERT_TRUE(fit.OnGate(stream_, layer, one.x, one.logits, now_).ok());
    }
    const Tensor features = WithContext(layers[0].x, begins, 0, kPassRows);
    ASSERT_TRUE(ridge.Add(stream_, features, {layers[1].logits, layers[2].logits}).ok());
    hidden.Add(features, layers[1].logits);
  }
  const absl::StatusOr<Tensor> map = ridge.Solve(stream_, 0);
  ASSERT_TRUE(map.ok());
  const std::optional<HiddenLayer> wanted = hidden.Fit(stream_, *map, {});
  ASSERT_TRUE(wanted.has_value());
  const std::vector<popularity::ProbeMap> maps = fit.SolveNow(stream_);
  ASSERT_EQ(maps.size(), 6u);
  const popularity::ProbeMap& network = maps[3];
  ASSERT_TRUE(network.in_context && network.layer == 0 && network.ahead == 1);
  ASSERT_EQ(network.num_units, wanted->num_units);
  ASSERT_EQ(static_cast<int64_t>(network.network.size()), network.NetworkSizeOf(kHidden, kExperts));
  const int64_t linear = wanted->linear.view().NumElements();
  for (int64_t i = 0; i < linear; ++i)
    EXPECT_EQ(network.network[i], static_cast<float>(wanted->linear.view().data<double>()[i])) << i;
  for (int64_t i = 0; i < wanted->out.view().NumElements(); ++i)
    EXPECT_EQ(network.network[linear + i], static_cast<float>(wanted->out.view().data<double>()[i])) << i;
  for (const popularity::ProbeMap& other : maps) {
    if (other.ahead == 2 || !other.in_context) {
      EXPECT_EQ(other.num_units, 0) << other.layer << " " << other.ahead;
    }
  }
  for (const absl::Time limit = absl::Now() + absl::Seconds(20); beside.empty() && absl::Now() < limit;)
    beside = fit.TakeSolved();
  ASSERT_EQ(beside.size(), 6u);
  EXPECT_GT(beside[3].num_units, 0);
}

TEST_F(ProbeFitTest, RowsAreKeptWhereAProfilingRunHasRoomForEnough) {
  const auto kept = [](int64_t hidden, double share, bool in_context) {
    return ProbeFit::KeptRowsOf(
        {.num_layers = 8, .num_experts = 16, .hidden = hidden, .share = share, .in_context = in_context});
  };
  EXPECT_EQ(kept(192, 1, true), ProbeFit::kMostKept);
  EXPECT_EQ(kept(192, 0.02, true), 0);
  EXPECT_EQ(kept(192, 1, false), 0);
  const int64_t rows = kept(384, 1, true);
  EXPECT_GE(rows, 32 * 2 * 384);
  EXPECT_LT(rows, ProbeFit::kMostKept);
  EXPECT_EQ(kept(2048, 1, true), 0);
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
  for (const bool in_context : {false, true}) {
    ProbeFitOptions options = Options(0.02);
    options.in_context = in_context;
    ProbeFit fit(options);
    EXPECT_EQ(fit.window().count, 0);
    std::vector<Layer> pass = RandomPass(kRows);
    std::vector<uint8_t> begins(kRows);
    begins[0] = begins[140] = 1;
    fit.Begin(kRows, now_, begins);
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
