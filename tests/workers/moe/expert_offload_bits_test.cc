// A MoE layer with fewer slots than experts: the same bits as with all of them resident, whatever the policy, the
// budget, the exchange and the pace of copies.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/workers/moe/moe_run.h"
#include "tests/workers/moe/named_policy.h"

namespace switchyard::moe {
namespace {

struct Case {
  std::string policy;
  int percent = 100;  // of the experts of a rank
  int world = 1;
  test::ExchangeKind exchange = test::ExchangeKind::kHost;
  bool delays = false;
  int micro_batches = 1;
};

std::string CaseName(const Case& c) {
  return absl::StrCat(c.policy, "_", c.percent, "percent_", c.world, "ranks_", test::ExchangeName(c.exchange),
                      c.delays ? "_delays" : "", c.micro_batches > 1 ? absl::StrCat("_in", c.micro_batches) : "");
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* policy : {"lru", "auto"}) {
    for (const int percent : {100, 50, 25, 10}) {
      for (const int world : {1, 2}) {
        for (const bool delays : {false, true})
          cases.push_back({policy, percent, world, test::ExchangeKind::kHost, delays});
      }
      cases.push_back({policy, percent, 2, test::ExchangeKind::kDeviceExact, true});
      cases.push_back({policy, percent, 2, test::ExchangeKind::kPadded, true});
      for (const int world : {1, 2}) cases.push_back({policy, percent, world, test::ExchangeKind::kHost, true, 3});
      cases.push_back({policy, percent, 2, test::ExchangeKind::kPadded, false, 2});
    }
  }
  return cases;
}

class ExpertOffloadTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Budgets, ExpertOffloadTest, testing::ValuesIn(Cases()),
                         [](const auto& i) { return CaseName(i.param); });

TEST_P(ExpertOffloadTest, TheBitsOfResidentExperts) {
  const Case& c = GetParam();
  const test::MoeShape shape = {.num_experts = 16, .top_k = 2, .shared_ffn = 32, .dtype = DType::kBf16};
  const test::MoeTestModel model(shape);
  const Tensor x = model.RandomRows(17, 5);
  const Tensor residual = model.RandomResidual(17, 6);
  test::MoeRun run = {.layout = ExpertLayout::Contiguous(shape.num_experts, c.world),
                      .rank_rows = c.world == 1 ? std::vector<int64_t>{17} : std::vector<int64_t>{12, 5},
                      .micro_batches = c.micro_batches,
                      .exchange = c.exchange};
  const auto resident = test::RunMoe(model, run, x, residual, 4);
  ASSERT_TRUE(resident.ok()) << resident.status();
  test::CopyScript copies;
  copies.Delay(11, absl::Microseconds(150));
  const int experts = shape.num_experts / c.world;
  run.expert_slots = std::max(2, experts * c.percent / 100);
  run.policy = test::PolicyOf(c.policy);
  if (c.delays) run.copies = &copies;
  const auto result = test::RunMoe(model, run, x, residual, 4);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->residual == resident->residual);
  for (int rank = 0; rank < c.world; ++rank) {
    const ExpertStoreCounters& counters = result->copies[rank];
    EXPECT_GT(counters.hits + counters.misses + counters.late, 4);
    EXPECT_EQ(counters.failed, 0);
    if (run.expert_slots == experts) {
      EXPECT_EQ(counters.misses, 0) << "all of them were there before the first layer";
      EXPECT_EQ(result->waves[rank], 4 * c.micro_batches);
    } else {
      EXPECT_GT(counters.misses + counters.late, 0);
    }
    EXPECT_GE(result->waves[rank], run.expert_slots < 5 ? 5 : 4);
  }
}

}  // namespace
}  // namespace switchyard::moe
