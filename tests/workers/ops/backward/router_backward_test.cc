#include "workers/ops/router/router_backward.h"

#include "tests/reference/backward_ops.h"
#include "tests/workers/ops/backward/backward_test_util.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kTokens = 70;

// A batch that was routed.
struct Routed {
  Tensor logits, idx, weight, dweight;
  std::vector<double> dprob;
};

class RouterBackwardTest : public OpTest {
 protected:
  Routed Route(int64_t experts, int64_t top_k, bool renormalize) {
    Routed r{RandomMatrix(acc(), kTokens, experts, 1, 2.0),
             Tensor(DType::kI32, {kTokens, top_k}),
             Tensor(acc(), {kTokens, top_k}),
             RandomMatrix(acc(), kTokens, top_k, 2),
             {}};
    SY_CHECK_OK(RouteTopK(stream(), {.top_k = top_k, .renormalize = renormalize}, r.logits, r.idx, r.weight));
    for (int64_t e = 0; e < experts; ++e) r.dprob.push_back(0.1 * static_cast<double>(e % 7) - 0.2);
    return r;
  }
};
class RouterBackwardF64Test : public RouterBackwardTest {};

// Some pairs, and whole rows, are dropped.
TEST_P(RouterBackwardTest, MatchesReference) {
  for (const auto& [experts, top_k] : {std::pair<int64_t, int64_t>{1, 1}, {5, 2}, {16, 4}, {70, 8}}) {
    for (bool renormalize : {false, true}) {
      const Routed r = Route(experts, top_k, renormalize);
      std::vector<reference::RouterCase> cases;
      for (int64_t t = 0; t < kTokens; ++t) {
        reference::RouterCase c;
        c.dprob = r.dprob, c.z_scale = 0.3, c.renormalize = renormalize;
        for (int64_t k = 0; k < top_k; ++k) {
          const int32_t expert = r.idx.view().row<int32_t>(t)[k];
          const bool dropped = t % 9 == 4 || (t % 3 == 1 && k == t % top_k);
          c.chosen.push_back(expert), c.dropped.push_back(dropped), c.dweight.push_back(Get(r.dweight, t, k));
          if (dropped) VisitDType(acc(), [&]<class Elem>() { r.dweight.view().row<Elem>(t)[k] = Elem{0}; });
        }
        cases.push_back(c);
      }
      const Tensor dlogits(dtype(), {kTokens, experts});
      ASSERT_TRUE(RouterBackward(stream(), {.renormalize = renormalize, .prob_gradient = r.dprob, .z_scale = 0.3},
                                 r.logits, r.idx, r.dweight, dlogits)
                      .ok());
      for (int64_t t = 0; t < kTokens; ++t) {
        ExpectNear(RowOf(dlogits, t), reference::RouterBackward(RowOf(r.logits, t), cases[t]),
                   reference::ReductionTolerance(dtype()), absl::StrCat("row ", t, " of ", experts, " experts"));
      }
    }
  }
}

TEST_P(RouterBackwardF64Test, IsTheGradientOfRouting) {
  for (bool renormalize : {false, true}) {
    const Routed r = Route(6, 3, renormalize);
    const Tensor dlogits(dtype(), {kTokens, 6}), idx(DType::kI32, {kTokens, 3}), weight(acc(), {kTokens, 3});
    ASSERT_TRUE(RouterBackward(stream(), {.renormalize = renormalize, .prob_gradient = r.dprob, .z_scale = 0.01},
                               r.logits, r.idx, r.dweight, dlogits)
                    .ok());
    const auto loss = [&] {
      SY_CHECK_OK(RouteTopK(stream(), {.top_k = 3, .renormalize = renormalize}, r.logits, idx, weight));
      RouterStatistics statistics;
      SY_CHECK_OK(ComputeRouterStatistics(stream(), r.logits, idx, &statistics));
      double sum = Dot(weight, r.dweight) + 0.01 * statistics.squared_logsumexp_sum;
      for (int64_t e = 0; e < 6; ++e) sum += r.dprob[e] * statistics.probability_sums[e];
      return sum;
    };
    ExpectIsGradient(r.logits.view().Rows(0, 9), dlogits.view().Rows(0, 9), loss);
  }
}

TEST_P(RouterBackwardTest, StatisticsMatchReference) {
  const Routed r = Route(13, 3, false);
  for (int64_t t = 0; t < kTokens; t += 5) r.idx.view().row<int32_t>(t)[1] = -1;
  RouterStatistics got{.counts = {7}, .probability_sums = {1.0}, .squared_logsumexp_sum = 3};
  ASSERT_TRUE(ComputeRouterStatistics(stream(), r.logits, r.idx, &got).ok());
  std::vector<int64_t> counts(3 * 13);
  std::vector<double> sums(13);
  double squares = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    const std::vector<double> logits = RowOf(r.logits, t), p = reference::Softmax(logits);
    for (int64_t k = 0; k < 3; ++k) {
      const int32_t expert = r.idx.view().row<int32_t>(t)[k];
      if (expert >= 0) ++counts[k * 13 + expert];
    }
    for (int64_t e = 0; e < 13; ++e) sums[e] += p[e];
    squares += std::pow(logits[0] - std::log(p[0]), 2);
  }
  EXPECT_EQ(got.counts, counts);
  ExpectNear(got.probability_sums, sums, {1e-13}, "probabilities");
  EXPECT_NEAR(got.squared_logsumexp_sum, squares, 1e-12 * squares);
}

TEST_P(RouterBackwardTest, StatisticsIgnoreThreads) {
  const Tensor logits = RandomMatrix(acc(), 300, 13, 1, 2.0), idx = Tensor::Zeros(DType::kI32, {300, 1});
  ExpectThreadsDoNotMatter([&](const Stream& stream) {
    RouterStatistics statistics;
    EXPECT_TRUE(ComputeRouterStatistics(stream, logits, idx, &statistics).ok());
    Tensor all(DType::kF64, {14});
    for (int e = 0; e < 13; ++e) all.data<double>()[e] = statistics.probability_sums[e];
    all.data<double>()[13] = statistics.squared_logsumexp_sum;
    return all;
  });
}

TEST_P(RouterBackwardTest, RowsIgnoreCompany) {
  const Tensor logits = RandomMatrix(acc(), 200, 13, 1), idx(DType::kI32, {200, 2}), weight(acc(), {200, 2});
  const Tensor dweight = RandomMatrix(acc(), 200, 2, 2);
  ASSERT_TRUE(RouteTopK(stream(), {.top_k = 2, .renormalize = true}, logits, idx, weight).ok());
  ExpectRowsIgnoreCompany(200, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor d(dtype(), {count, 13});
    EXPECT_TRUE(RouterBackward(stream, {.renormalize = true, .z_scale = 0.1}, logits.view().Rows(begin, count),
                               idx.view().Rows(begin, count), dweight.view().Rows(begin, count), d)
                    .ok());
    return d;
  });
}

TEST_P(RouterBackwardTest, MisfitsAreNamed) {
  const Tensor logits(acc(), {2, 4}), idx = Tensor::Zeros(DType::kI32, {2, 2}), dweight(acc(), {2, 2}),
                                      d(dtype(), {2, 4});
  const std::vector<double> three(3);
  RouterStatistics statistics;
  ExpectNames(RouterBackward(stream(), {.prob_gradient = three}, logits, idx, dweight, d),
              "must be 4 numbers or none, is 3");
  ExpectNames(RouterBackward(stream(), {}, logits, idx, Tensor(acc(), {2, 3}), d), "d_topk_weight must be");
  ExpectNames(RouterBackward(stream(), {}, logits, idx, dweight, Tensor(dtype(), {2, 3})), "dlogits must be");
  ExpectNames(ComputeRouterStatistics(stream(), logits, Tensor(DType::kI32, {2, 5}), &statistics),
              "top_k must be in [1, 4]");
  idx.view().row<int32_t>(1)[0] = 4;
  ExpectNames(RouterBackward(stream(), {}, logits, idx, dweight, d), "topk_idx[1, 0] = 4");
}

SY_INSTANTIATE_OP_TEST(RouterBackwardTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(RouterBackwardF64Test, {DType::kF64});

}  // namespace
}  // namespace switchyard::ops
