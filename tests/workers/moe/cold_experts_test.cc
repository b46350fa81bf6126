// A budget's cold experts computed on the host: as near to double precision as with copies, on one device and on two.
#include "workers/moe/experts/cold_experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/offload/policies/lru_policy.h"
#include "tests/devices/test_device.h"
#include "tests/workers/comm/nccl_test_util.h"
#include "tests/workers/moe/moe_run.h"

namespace switchyard::moe {
namespace {

using test::DeviceMemory;
using test::ExchangeKind;
using test::MoeResult;
using test::MoeRun;
using test::MoeShape;
using test::MoeTestModel;

constexpr int64_t kRows = 23;
constexpr test::MoeShape kShape{.hidden = 48, .ffn = 24, .num_experts = 8, .top_k = 3, .dtype = DType::kBf16};

class ColdExpertsTest : public testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
  // Rows of one rank more than of the other; so few slots that most experts are in none.
  test::MoeResult Run(double cold_price, int repeats = 1) {
    test::MoeRun run{.layout = ExpertLayout::Contiguous(kShape.num_experts, world()),
                     .rank_rows = world() == 1 ? std::vector<int64_t>{kRows} : std::vector<int64_t>{kRows - 6, 6},
                     .exchange = test::ExchangeKind::kDeviceExact,
                     .expert_slots = 2,
                     .policy = [](const offload::OffloadShape& shape) -> std::unique_ptr<offload::CachePolicy> {
                       const std::vector<int64_t> popularity(static_cast<size_t>(shape.num_keys()), 1);
                       return std::make_unique<offload::LruPolicy>(shape, true, popularity);
                     },
                     .cold_price = cold_price};
    test::MoeResult result;
    result.residual.assign(static_cast<const char*>(residual_.view().raw()), static_cast<size_t>(residual_.bytes()));
    result.stats.resize(run.rank_rows.size());
    result.expert_counts.resize(run.rank_rows.size());
    result.copies.resize(run.rank_rows.size());
    result.waves.resize(run.rank_rows.size());
    result.cold.resize(run.rank_rows.size());
    test::ExpectNcclOk(world(), [&](comm::Communicator* comm, test::DeviceMemory*) {
      const TestStream stream(1, comm->rank());
      return test::RunMoeRank(*model_.On(stream), run, comm, stream, x_, repeats, &result);
    });
    return result;
  }
  // The largest distance from double precision.
  double ErrorOf(const test::MoeResult& result) const {
    const std::vector<double> exact = model_.Naive(x_, residual_);
    std::vector<float> got(exact.size());
    std::memcpy(got.data(), result.residual.data(), result.residual.size());
    double error = 0;
    for (size_t i = 0; i < exact.size(); ++i) error = std::max(error, std::abs(got[i] - exact[i]));
    return error;
  }
  static int64_t ColdRows(const test::MoeResult& result) {
    int64_t rows = 0;
    for (const ColdCounters& cold : result.cold) rows += cold.rows;
    return rows;
  }
  static int64_t Misses(const test::MoeResult& result) {
    int64_t misses = 0;
    for (const ExpertStoreCounters& copies : result.copies) misses += copies.misses;
    return misses;
  }

  const test::MoeTestModel model_{kShape};
  const Tensor x_ = model_.RandomRows(kRows, 3), residual_ = model_.RandomResidual(kRows, 4);
};

INSTANTIATE_TEST_SUITE_P(Ranks, ColdExpertsTest, testing::Values(1, 2),
                         [](const auto& i) { return std::to_string(i.param) + "_ranks"; });

TEST_P(ColdExpertsTest, AsNearToDoublePrecisionAsWithCopies) {
  const test::MoeResult copied = Run(/*cold_price=*/-1), cold = Run(/*cold_price=*/1e9);
  EXPECT_GT(Misses(copied), 0);
  EXPECT_EQ(Misses(cold), 0);
  // Two experts of each rank are in slots.
  EXPECT_GT(ColdRows(cold), kRows * kShape.top_k / 4);
  EXPECT_LT(ColdRows(cold), kRows * kShape.top_k);
  for (const ColdCounters& counters : cold.cold) {
    EXPECT_GT(counters.experts, 0);
    EXPECT_GT(counters.seconds, 0);
  }
  // bf16 keeps 8 bits of each expert's hidden rows and outputs, on the host and on the device.
  const double with_copies = ErrorOf(copied), on_host = ErrorOf(cold);
  EXPECT_LT(with_copies, 0.05);
  EXPECT_LT(on_host, std::max(0.02, 1.5 * with_copies));
}

TEST_P(ColdExpertsTest, WhatIsCheaperToCopyIsCopiedWithTheSameBits) {
  const test::MoeResult copied = Run(/*cold_price=*/-1, /*repeats=*/2), dear = Run(/*cold_price=*/0, /*repeats=*/2);
  EXPECT_TRUE(dear.residual == copied.residual);
  EXPECT_EQ(ColdRows(dear), 0);
  EXPECT_EQ(Misses(dear), Misses(copied));
}

// A layer's rows that are rented all the time, over and over: what is fetched and sent back is of each layer.
TEST_P(ColdExpertsTest, LayersFollowEachOther) {
  constexpr int kRepeats = 4;
  const test::MoeResult copied = Run(/*cold_price=*/-1, kRepeats), cold = Run(/*cold_price=*/1e9, kRepeats);
  EXPECT_EQ(ColdRows(cold) % kRepeats, 0);
  std::vector<float> a(copied.residual.size() / sizeof(float)), b(a.size());
  std::memcpy(a.data(), copied.residual.data(), copied.residual.size());
  std::memcpy(b.data(), cold.residual.data(), cold.residual.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(b[i], a[i], 0.05 * kRepeats) << i;
}

}  // namespace
}  // namespace switchyard::moe
