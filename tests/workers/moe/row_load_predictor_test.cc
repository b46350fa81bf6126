// A load predictor over a stack of gates that all see the same rows, so that what the next gates say is known
// beforehand.
#include "workers/moe/popularity/row_load_predictor.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/router/router.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using testing::HasSubstr;

constexpr popularity::RoutingShape kShape{.num_layers = 3, .num_experts = 8, .top_k = 2};
constexpr int64_t kHidden = 16;

// Total variation.  Calibration leaves some, also where the predictions are right: it counts what little it has seen.
double Distance(const popularity::Popularity& a, const popularity::Popularity& b) {
  return static_cast<double>(popularity::DistanceOf(a, b)) / popularity::kWholeDistance;
}

class RowLoadPredictorTest : public testing::Test {
 protected:
  RowLoadPredictorTest() {
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      router_rows_.push_back(Random(kShape.num_experts, kHidden));
      routers_.push_back(*ops::PackWeight(stream_, {.n = kShape.num_experts, .k = kHidden, .dtype = DType::kF32},
                                          router_rows_.back()));
    }
    for (const ops::Weight& router : routers_) options_.routers.push_back(&router);
    options_.model = "stack";
    options_.shape = kShape;
    options_.hidden = kHidden;
    options_.dtype = DType::kF32;
  }

  Tensor Random(int64_t rows, int64_t columns) {
    std::normal_distribution<float> normal;
    Tensor tensor(DType::kF32, {rows, columns});
    for (int64_t i = 0; i < rows * columns; ++i) tensor.view().data<float>()[i] = normal(random_);
    return tensor;
  }

  Tensor LogitsOf(const ops::Weight& router, const TensorView& x) {
    Tensor logits(DType::kF32, {x.dim(0), kShape.num_experts});
    EXPECT_TRUE(ops::Gemm(stream_, {}, x, router, {}, logits).ok());
    return logits;
  }
  // [T, K] of a layer's router.
  Tensor Choose(const ops::Weight& router, const TensorView& x) {
    Tensor logits = LogitsOf(router, x), weights(DType::kF32, {x.dim(0), kShape.top_k});
    Tensor chosen(DType::kI32, {x.dim(0), kShape.top_k});
    EXPECT_TRUE(ops::RouteTopK(stream_, {.top_k = kShape.top_k}, logits, chosen, weights).ok());
    return chosen;
  }

  struct Reported {
    int after = -1;  // the gate; -1: Begin
    int layer = 0;
    popularity::Popularity popularity;
  };
  // A pass over rows that every layer sees alike; chooses by `gates`, each layer's own router or another.
  std::vector<Reported> Pass(RowLoadPredictor* load_predictor, const TensorView& x, int64_t decodes,
                             const std::vector<int>& gates = {0, 1, 2}) {
    std::vector<Reported> reported;
    const auto take = [&](int after, const absl::StatusOr<absl::Span<const placement::LayerEstimate>>& estimates) {
      ASSERT_TRUE(estimates.ok()) << estimates.status();
      for (const placement::LayerEstimate& one : *estimates)
        reported.push_back({after, one.layer, popularity::Popularity(one.popularity.begin(), one.popularity.end())});
    };
    std::vector<int32_t> ids(static_cast<size_t>(x.dim(0)));
    for (size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<int32_t>(t % 5);
    take(-1, load_predictor->Begin({.num_rows = x.dim(0), .num_decode_rows = decodes, .token_ids = ids}));
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      const ops::Weight& router = routers_[static_cast<size_t>(gates[static_cast<size_t>(layer)])];
      const Tensor chosen = Choose(router, x), logits = LogitsOf(router, x);
      take(layer, load_predictor->OnGate({.stream = &stream_},
                                         {.index = layer, .x = x, .logits = logits, .topk_on_host = chosen}));
      if (testing::Test::HasFatalFailure()) return reported;
    }
    return reported;
  }

  // A map that says what a layer's router says.
  popularity::ProbeMap MapOf(int router, int layer, int ahead) {
    popularity::ProbeMap map{.layer = layer, .ahead = ahead, .num_rows = 1000, .values = {}};
    for (int64_t e = 0; e < kShape.num_experts; ++e) {
      const float* const row = router_rows_[static_cast<size_t>(router)].view().row<float>(e);
      map.values.insert(map.values.end(), row, row + kHidden);
      map.values.push_back(0);
    }
    return map;
  }

  popularity::Popularity Counts(int layer, const TensorView& x) {
    popularity::Popularity counts(static_cast<size_t>(kShape.num_experts));
    const Tensor chosen = Choose(routers_[static_cast<size_t>(layer)], x);
    for (int64_t i = 0; i < x.dim(0) * kShape.top_k; ++i)
      counts[static_cast<size_t>(chosen.view().data<int32_t>()[i])] += popularity::kRow;
    return counts;
  }

  std::mt19937 random_{7};
  ThreadPool pool_{2};
  const Stream stream_ = Stream::OnCpu(&pool_);
  std::vector<Tensor> router_rows_;  // [L] of [E, H]
  std::vector<ops::Weight> routers_;
  RowLoadPredictorOptions options_;
};

TEST_F(RowLoadPredictorTest, TheNextGatesOnTheseRowsAreWhatItReportsWhereTheyAreRight) {
  RowLoadPredictor load_predictor(options_);
  for (int pass = 0; pass < 40; ++pass) Pass(&load_predictor, Random(24, kHidden), 8);
  const Tensor x = Random(24, kHidden);
  const std::vector<Reported> reported = Pass(&load_predictor, x, 8);
  // Layer 0 (and 1) by token ids; 1 and 2 after gate 0; 2 after gate 1; nothing after the last.
  std::vector<std::pair<int, int>> when;
  for (const Reported& one : reported) when.emplace_back(one.after, one.layer);
  EXPECT_EQ(when, (std::vector<std::pair<int, int>>{{-1, 0}, {-1, 1}, {0, 1}, {0, 2}, {1, 2}}));
  for (const Reported& one : reported) {
    EXPECT_EQ(popularity::TotalOf(one.popularity), 24 * kShape.top_k * popularity::kRow);
    if (one.after >= 0) {
      EXPECT_LT(Distance(one.popularity, Counts(one.layer, x)), 0.06) << one.after << " " << one.layer;
    }
  }
  for (const popularity::Phase phase : {popularity::Phase::kPrefill, popularity::Phase::kDecode})
    EXPECT_EQ(load_predictor.phase(phase).Best(1, 1), popularity::LivePredictor::kGateAhead);
  EXPECT_GT(load_predictor.spent(), absl::ZeroDuration());
}

// Before predictions have been counted they are taken as they are: exactly what these gates choose of these rows.
TEST_F(RowLoadPredictorTest, TheNextGatesAreAskedOfTheRowsThatTheyGet) {
  RowLoadPredictor load_predictor(options_);
  Pass(&load_predictor, Random(24, kHidden), 8);
  for (const popularity::Phase phase : {popularity::Phase::kPrefill, popularity::Phase::kDecode}) {
    for (const auto& [layer, ahead] : {std::pair(1, 1), {2, 1}, {2, 2}}) {
      const popularity::EstimateScore& score =
          load_predictor.phase(phase).score(popularity::LivePredictor::kGateAhead, layer, ahead);
      EXPECT_EQ(score.num_batches(), 1) << layer << " " << ahead;
      EXPECT_EQ(score.distance(), 0) << layer << " " << ahead;
    }
  }
}

// Gates that nothing predicts but a fitted map, which is the true router: layer 2 chooses by router 0.
TEST_F(RowLoadPredictorTest, AFittedMapIsTakenWhereTheGateAheadIsWrong) {
  RowLoadPredictor load_predictor(options_);
  ASSERT_TRUE(load_predictor.SetProbe(stream_, MapOf(0, 1, 1)).ok());
  const std::vector<int> gates = {0, 1, 0};
  for (int pass = 0; pass < 40; ++pass) Pass(&load_predictor, Random(24, kHidden), 8, gates);
  const Tensor x = Random(24, kHidden);
  const std::vector<Reported> reported = Pass(&load_predictor, x, 8, gates);
  EXPECT_EQ(reported.back().after, 1);
  EXPECT_LT(Distance(reported.back().popularity, Counts(0, x)), 0.06);
  EXPECT_EQ(load_predictor.phase(popularity::Phase::kPrefill).Best(2, 1), popularity::LivePredictor::kProbe);
  EXPECT_THAT(std::string(load_predictor.SetProbe(stream_, MapOf(0, 1, 2)).message()),
              HasSubstr("layer 1 for 2 ahead"));
  popularity::ProbeMap narrow = MapOf(0, 1, 1);
  narrow.values.pop_back();
  EXPECT_THAT(std::string(load_predictor.SetProbe(stream_, narrow).message()), HasSubstr("135 values, wants [8, 17]"));
}

TEST_F(RowLoadPredictorTest, WhatOneHasLearnedAnotherTakes) {
  options_.probe_share = 1;
  options_.keeps_own = true;
  RowLoadPredictor first(options_);
  const std::vector<int> gates = {0, 1, 0};
  for (int pass = 0; pass < 30; ++pass) Pass(&first, Random(24, kHidden), 8, gates);
  const absl::StatusOr<Learned> collected = first.Collect(stream_);
  ASSERT_TRUE(collected.ok()) << collected.status();
  const popularity::ProfileBundle& learned = collected->all;
  EXPECT_EQ(learned.profiles.size(), 12u);
  ASSERT_EQ(learned.maps.size(), 3u);
  EXPECT_EQ(learned.maps[0].num_rows, 30 * 24);
  options_.probe_share = 0;
  options_.keeps_own = false;
  RowLoadPredictor second(options_);
  ASSERT_TRUE(second.Load(stream_, {.all = learned}).ok());
  for (int pass = 0; pass < 20; ++pass) Pass(&second, Random(24, kHidden), 8, gates);
  EXPECT_GT(second.phase(popularity::Phase::kDecode).profiles()[0].num_tokens(0), 30 * 8);
  // Router 0 predicted from rows that router 0 saw, by a fit: right but for near ties.
  EXPECT_LT(second.phase(popularity::Phase::kPrefill).score(popularity::LivePredictor::kProbe, 2, 1).distance(), 0.1);
  EXPECT_EQ(second.Collect(stream_)->all.maps.size(), 3u);
  popularity::ProfileBundle foreign = learned;
  foreign.model = "another";
  EXPECT_THAT(std::string(second.Load(stream_, {.all = foreign}).message()), HasSubstr("model is another"));
}

TEST_F(RowLoadPredictorTest, WhatWasLoadedIsDistinguishedFromWhatWasLearnedSince) {
  options_.probe_share = 1;
  options_.keeps_own = true;
  constexpr int64_t kRows = 24, kPrompts = 16, kBefore = 30, kSince = 20;
  const auto serve = [&](RowLoadPredictor* load_predictor, int64_t passes) {
    for (int64_t pass = 0; pass < passes; ++pass) Pass(load_predictor, Random(kRows, kHidden), kRows - kPrompts);
  };
  RowLoadPredictor before(options_);
  serve(&before, kBefore);
  const absl::StatusOr<Learned> past = before.Collect(stream_);
  ASSERT_TRUE(past.ok()) << past.status();
  EXPECT_EQ(past->own.Serialize(), past->all.Serialize());
  RowLoadPredictor first(options_), second(options_);
  for (RowLoadPredictor* const one : {&first, &second}) {
    ASSERT_TRUE(one->Load(stream_, {.all = past->all}).ok());
    serve(one, kSince);
  }
  // The past counts once.
  popularity::ProfileBundle merged = first.Collect(stream_)->all;
  ASSERT_TRUE(merged.Merge(second.Collect(stream_)->own).ok());
  EXPECT_EQ(merged.profiles[0].num_tokens(0), (kBefore + 2 * kSince) * kPrompts);
  EXPECT_EQ(popularity::TotalOf(merged.profiles[1].MarginalCounts(2)),
            (kBefore + 2 * kSince) * kPrompts * kShape.top_k);
  ASSERT_EQ(merged.maps.size(), 3u);
  for (const popularity::ProbeMap& map : merged.maps) EXPECT_EQ(map.num_rows, (kBefore + 2 * kSince) * kRows);
  // On another assignment it goes on.
  RowLoadPredictor third(options_);
  ASSERT_TRUE(third.Load(stream_, *second.Collect(stream_)).ok());
  serve(&third, 5);
  const absl::StatusOr<Learned> end = third.Collect(stream_);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->own.profiles[0].num_tokens(0), (kSince + 5) * kPrompts);
  EXPECT_EQ(end->all.profiles[0].num_tokens(0), (kBefore + kSince + 5) * kPrompts);
  EXPECT_EQ(end->own.maps[0].num_rows, (kSince + 5) * kRows);
  EXPECT_EQ(end->all.maps[0].num_rows, (kBefore + kSince + 5) * kRows);
}

// The pieces that a server asks for while it serves: all that was learned, or only what no other worker has from the
// same file.
TEST_F(RowLoadPredictorTest, WhatWasLearnedIsTakenPieceByPiece) {
  RowLoadPredictor past(options_);
  Pass(&past, Random(24, kHidden), 8);
  popularity::ProfileBundle loaded = past.Collect(stream_)->all;
  loaded.maps = {MapOf(1, 0, 1), MapOf(2, 1, 1)};
  RowLoadPredictor load_predictor(options_);
  // The second one was fitted before this assignment was taken.
  popularity::ProfileBundle own = load_predictor.EmptyBundle();
  own.maps = {loaded.maps[1]};
  ASSERT_TRUE(load_predictor.Load(stream_, {.all = loaded, .own = own}).ok());
  Pass(&load_predictor, Random(6, kHidden), 2);
  const auto taken = [&](bool own_alone) {
    popularity::ProfileBundle bundle = load_predictor.EmptyBundle();
    for (int piece = 0; piece < load_predictor.num_pieces(); ++piece) {
      EXPECT_EQ(bundle.profiles.size(), static_cast<size_t>(piece)) << "one at a time";
      EXPECT_TRUE(bundle.maps.empty());
      load_predictor.AddPiece(piece, own_alone, &bundle);
    }
    return bundle;
  };
  const absl::StatusOr<Learned> all = load_predictor.Collect(stream_);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(taken(false).Serialize(), all->all.Serialize());
  EXPECT_EQ(taken(true).Serialize(), all->own.Serialize());
  EXPECT_EQ(all->all.profiles[0].num_tokens(0), 16 + 4);
  EXPECT_EQ(all->own.profiles[0].num_tokens(0), 4);
  EXPECT_EQ(all->all.maps.size(), 2u);
  ASSERT_EQ(all->own.maps.size(), 1u);
  EXPECT_EQ(all->own.maps[0].layer, 1);
}

TEST_F(RowLoadPredictorTest, AStepOfOnePhaseAloneAndOneWithoutRows) {
  RowLoadPredictor load_predictor(options_);
  for (const int64_t decodes : {0, 6, 3}) Pass(&load_predictor, Random(6, kHidden), decodes);
  EXPECT_EQ(load_predictor.phase(popularity::Phase::kPrefill).profiles()[0].num_tokens(0), 9);
  EXPECT_EQ(load_predictor.phase(popularity::Phase::kDecode).profiles()[0].num_tokens(0), 9);
  EXPECT_THAT(Pass(&load_predictor, Random(0, kHidden), 0), testing::IsEmpty());
  EXPECT_EQ(Pass(&load_predictor, Random(1, kHidden), 1).size(), 5u);
}

TEST_F(RowLoadPredictorTest, TokensThatAreNotKnownHereAreNotCountedByTheirIds) {
  RowLoadPredictor load_predictor(options_);
  const std::vector<int32_t> ids = {3, -1, 4};
  const Tensor x = Random(3, kHidden), chosen = Choose(routers_[0], x);
  ASSERT_TRUE(load_predictor.Begin({.num_rows = 3, .num_decode_rows = 1, .token_ids = ids}).ok());
  ASSERT_TRUE(load_predictor.OnGate({.stream = &stream_}, {.index = 0, .x = x, .topk_on_host = chosen}).ok());
  EXPECT_EQ(load_predictor.phase(popularity::Phase::kDecode).profiles()[1].num_rows(0), 1);
  EXPECT_EQ(load_predictor.phase(popularity::Phase::kPrefill).profiles()[1].num_rows(0), 0);
  EXPECT_EQ(load_predictor.phase(popularity::Phase::kPrefill).profiles()[0].num_tokens(0), 2);
}

TEST_F(RowLoadPredictorTest, LayersOutOfTurnAreNamed) {
  RowLoadPredictor load_predictor(options_);
  const Tensor x = Random(2, kHidden), chosen = Choose(routers_[0], x);
  ASSERT_TRUE(load_predictor.Begin({.num_rows = 2, .num_decode_rows = 2, .token_ids = {}}).ok());
  const auto reported = load_predictor.OnGate({.stream = &stream_}, {.index = 1, .x = x, .topk_on_host = chosen});
  EXPECT_THAT(std::string(reported.status().message()), HasSubstr("MoE layer 1"));
  // The next pass begins anew.
  Pass(&load_predictor, x, 2);
}

}  // namespace
}  // namespace switchyard::moe
