// A load predictor whose rows are on the test's device says what one on the CPU says of the same rows: by the next
// gates, by maps that were loaded, and by maps that it fits from rows that it fetches.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/ops/op_test_util.h"
#include "workers/moe/popularity/row_load_predictor.h"
#include "workers/ops/core/kernels_cuda.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/router/router.h"
#include "workers/tensor/copy.h"

namespace switchyard::moe {
namespace {

constexpr popularity::RoutingShape kShape{.num_layers = 3, .num_experts = 8, .top_k = 2};
constexpr int64_t kHidden = 16, kRows = 90, kDecodes = 10;
// Of what rows add up to, how much may stand with other experts: products are rounded otherwise, so that near ties may
// fall otherwise.
constexpr double kTolerance = 0.01;

// Where a load predictor's rows are.
struct Place {
  explicit Place(const Stream& where) : stream(where) {}

  const Stream stream;
  std::vector<ops::Weight> routers;
  std::unique_ptr<RowLoadPredictor> load_predictor;
};

class ForecastDeviceTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!HasDevices(1)) GTEST_SKIP() << "skipped: no GPU";
    device_stream_ = std::make_unique<TestStream>();
    for (int layer = 0; layer < kShape.num_layers; ++layer)
      router_rows_.push_back(
          ops::RandomMatrix(GetParam(), kShape.num_experts, kHidden, 20 + static_cast<uint32_t>(layer)));
    Make(0);
  }
  // Two of the same, one here and one there.
  void Make(double probe_share) {
    here_ = std::make_unique<Place>(Stream::OnCpu(&pool_));
    there_ = std::make_unique<Place>(device_stream_->get());
    for (Place* const place : {here_.get(), there_.get()}) {
      for (const Tensor& rows : router_rows_) {
        place->routers.push_back(
            *ops::PackWeight(place->stream, {.n = kShape.num_experts, .k = kHidden, .dtype = GetParam()}, rows));
      }
      RowLoadPredictorOptions options;
      for (const ops::Weight& router : place->routers) options.routers.push_back(&router);
      options.model = "stack";
      options.shape = kShape;
      options.hidden = kHidden;
      options.dtype = GetParam();
      options.probe_share = probe_share;
      place->load_predictor = std::make_unique<RowLoadPredictor>(options);
    }
  }
  // A map that says what a layer's router says.
  popularity::ProbeMap MapOf(int router, popularity::ProbeMap map) const {
    map.num_rows = 1000;
    for (int64_t e = 0; e < kShape.num_experts; ++e) {
      for (int64_t c = 0; c < kHidden; ++c)
        map.values.push_back(static_cast<float>(ops::Get(router_rows_[static_cast<size_t>(router)], e, c)));
      map.values.push_back(0);
    }
    return map;
  }
  void SetProbe(const popularity::ProbeMap& map) {
    for (Place* const place : {here_.get(), there_.get()})
      ASSERT_TRUE(place->load_predictor->SetProbe(place->stream, map).ok());
  }

  // One gate, as that place sees it, with the choices of the CPU's.
  static std::vector<popularity::Popularity> Gate(Place* place, int layer, const Tensor& x, const Tensor& logits,
                                                  const Tensor& chosen) {
    const Tensor x_there = *CopyToDevice(place->stream, x), logits_there = *CopyToDevice(place->stream, logits);
    const auto reported =
        place->load_predictor->OnGate({.stream = &place->stream, .deadline = absl::Now() + absl::Seconds(60)},
                                      {.index = layer, .x = x_there, .logits = logits_there, .topk_on_host = chosen});
    EXPECT_TRUE(reported.ok()) << reported.status();
    std::vector<popularity::Popularity> kept;
    if (!reported.ok()) return kept;
    for (const placement::LayerEstimate& one : *reported)
      kept.emplace_back(one.popularity.begin(), one.popularity.end());
    return kept;
  }
  // A pass over rows that every layer sees alike, whose gates are those of these layers.
  void Pass(const Tensor& x, const std::vector<int>& gates) {
    for (Place* const place : {here_.get(), there_.get()}) {
      ASSERT_TRUE(place->load_predictor->Begin({.num_rows = kRows, .num_decode_rows = kDecodes, .token_ids = {}}).ok());
    }
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      Tensor logits(AccDType(GetParam()), {kRows, kShape.num_experts});
      const ops::Weight& router = here_->routers[static_cast<size_t>(gates[static_cast<size_t>(layer)])];
      ASSERT_TRUE(ops::Gemm(here_->stream, {}, x, router, {}, logits).ok());
      Tensor chosen(DType::kI32, {kRows, kShape.top_k}), weight(logits.dtype(), {kRows, kShape.top_k});
      ASSERT_TRUE(ops::RouteTopK(here_->stream, {.top_k = kShape.top_k}, logits, chosen, weight).ok());
      ExpectAlike(Gate(here_.get(), layer, x, logits, chosen), Gate(there_.get(), layer, x, logits, chosen));
    }
  }
  static void ExpectAlike(const std::vector<popularity::Popularity>& here,
                          const std::vector<popularity::Popularity>& there) {
    ASSERT_EQ(here.size(), there.size());
    for (size_t i = 0; i < here.size(); ++i) {
      EXPECT_EQ(popularity::TotalOf(there[i]), kRows * kShape.top_k * popularity::kRow);
      int64_t apart = 0;
      for (size_t e = 0; e < here[i].size(); ++e) apart += std::abs(here[i][e] - there[i][e]);
      EXPECT_LE(static_cast<double>(apart), 2 * kTolerance * static_cast<double>(popularity::TotalOf(here[i])));
    }
  }
  void Passes(int count, const std::vector<int>& gates) {
    for (int pass = 0; pass < count; ++pass)
      ASSERT_NO_FATAL_FAILURE(Pass(ops::RandomMatrix(GetParam(), kRows, kHidden, next_seed_++), gates));
  }
  // How right the prompts' predictor of a layer was so far, one layer ahead: total-variation distance.
  static double DistanceOf(const Place& place, popularity::LivePredictor estimator, int layer) {
    return place.load_predictor->phase(popularity::Phase::kPrefill).score(estimator, layer, 1).distance();
  }

  ThreadPool pool_{1};
  std::unique_ptr<TestStream> device_stream_;
  std::vector<Tensor> router_rows_;
  std::unique_ptr<Place> here_, there_;
  uint32_t next_seed_ = 100;
};

INSTANTIATE_TEST_SUITE_P(DTypes, ForecastDeviceTest, testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& i) { return DTypeName(i.param); });

TEST_P(ForecastDeviceTest, TheNextGatesOnTheseRows) {
  Passes(12, {0, 1, 2});
  for (const Place* const place : {here_.get(), there_.get()}) {
    EXPECT_LT(DistanceOf(*place, popularity::LivePredictor::kGateAhead, 1), 0.03);
    EXPECT_LT(DistanceOf(*place, popularity::LivePredictor::kGateAhead, 2), 0.03);
  }
}

TEST_P(ForecastDeviceTest, MapsThatWereLoaded) {
  SetProbe(MapOf(0, {.layer = 1, .ahead = 1, .values = {}}));
  Passes(12, {0, 1, 0});
  for (const Place* const place : {here_.get(), there_.get()}) {
    EXPECT_LT(DistanceOf(*place, popularity::LivePredictor::kProbe, 2), 0.03);
    EXPECT_GT(DistanceOf(*place, popularity::LivePredictor::kGateAhead, 2), 0.06);
  }
}

TEST_P(ForecastDeviceTest, MapsThatItFitsOfRowsThatItFetches) {
  Make(/*probe_share=*/1);
  Passes(6, {0, 1, 0});
  std::vector<popularity::ProfileBundle> learned;
  for (Place* const place : {here_.get(), there_.get()}) {
    const RowLoadPredictor& load_predictor = *place->load_predictor;
    EXPECT_EQ(load_predictor.fit()->num_rows(), 6 * kRows);
    learned.emplace_back().maps = load_predictor.fit()->SolveNow(place->stream);
  }
  ASSERT_EQ(learned[0].maps.size(), 3u);
  ASSERT_EQ(learned[1].maps.size(), 3u);
  for (size_t m = 0; m < learned[0].maps.size(); ++m) {
    const popularity::ProbeMap &here = learned[0].maps[m], &there = learned[1].maps[m];
    EXPECT_EQ(there.num_rows, here.num_rows);
    EXPECT_EQ(there.values, here.values) << m;  // the same numbers, whencesoever they were fetched
  }
}

TEST_P(ForecastDeviceTest, WhatIsReservedIsEnough) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "the CPU needs none";
  SetProbe(MapOf(0, {.layer = 1, .ahead = 1, .values = {}}));
  ASSERT_TRUE(there_->stream.queue()->Workspace(ops::kCudaWorkspaceBytes).ok());  // a worker's steps have it already
  ASSERT_TRUE(there_->load_predictor->Reserve(there_->stream, kRows).ok());
  EXPECT_EQ(there_->load_predictor->MapBytesToCome(TestDevice().kind), 0);
  const int64_t taken = MemoryInUse(TestDevice().kind);
  Passes(2, {0, 1, 0});
  EXPECT_EQ(MemoryInUse(TestDevice().kind), taken);
  Make(/*probe_share=*/1);
  const int64_t before = MemoryInUse(TestDevice().kind),
                limit = there_->load_predictor->MapBytesToCome(TestDevice().kind);
  for (int layer = 0; layer < 2; ++layer) {
    for (int ahead = 1; layer + ahead < kShape.num_layers; ++ahead)
      SetProbe(MapOf(0, {.layer = layer, .ahead = ahead, .values = {}}));
  }
  EXPECT_LE(MemoryInUse(TestDevice().kind) - before, limit);
  EXPECT_GT(limit, 0);
}

}  // namespace
}  // namespace switchyard::moe
