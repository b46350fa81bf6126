#include "scheduler/batching/row_transfers.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace switchyard::batching {
namespace {

std::string Transfers(const std::vector<int32_t>& rank_rows, int32_t min_rows) {
  std::string out;
  for (const RowTransfer& transfer : GiveRows(rank_rows, min_rows)) {
    absl::StrAppend(&out, out.empty() ? "" : " ", transfer.from, ">", transfer.to, ":", transfer.rows);
  }
  return out;
}

TEST(RowTransfers, BringRanksTowardsTheMean) {
  EXPECT_EQ(Transfers({512, 0}, 64), "0>1:256");
  EXPECT_EQ(Transfers({0, 512}, 64), "1>0:256");
  EXPECT_EQ(Transfers({8, 520}, 64), "1>0:256");
  EXPECT_EQ(Transfers({512, 0, 0, 0}, 64), "0>1:128 0>2:128 0>3:128");
  EXPECT_EQ(Transfers({400, 400, 0, 0}, 64), "0>2:200 1>3:200");
  EXPECT_EQ(Transfers({100, 0, 600, 100}, 64), "2>0:100 2>1:200 2>3:100");
}

TEST(RowTransfers, AreWorthIt) {
  EXPECT_EQ(Transfers({16, 0}, 64), "");
  EXPECT_EQ(Transfers({126, 0}, 64), "");
  EXPECT_EQ(Transfers({128, 0}, 64), "0>1:64");
  EXPECT_EQ(Transfers({512, 0}, 0), "");
  EXPECT_EQ(Transfers({}, 1), "");
  EXPECT_EQ(Transfers({700}, 1), "");
  EXPECT_EQ(Transfers({256, 256}, 1), "");
  // The mean is less than a transfer: some ranks get one, the others nothing.
  EXPECT_EQ(Transfers({128, 0, 0, 0, 0, 0, 0, 0}, 32), "0>1:32 0>2:32 0>3:32");
  // A rank a little below the mean may end a little above it.
  EXPECT_EQ(Transfers({200, 95, 5}, 40), "0>1:40 0>2:60");
}

TEST(RowTransfers, KeepTheirPromises) {
  std::mt19937 random(5);
  const auto pick = [&random](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 20000; ++round) {
    std::vector<int32_t> rows(pick(1, 9));
    for (int32_t& r : rows) r = pick(0, 2) == 0 ? 0 : pick(0, 300);
    const int32_t min_rows = pick(1, 80);
    const auto num_ranks = static_cast<int32_t>(rows.size());
    const int32_t mean = std::accumulate(rows.begin(), rows.end(), 0) / num_ranks;
    std::vector<int32_t> given(rows.size()), borrowed(rows.size());
    const std::vector<RowTransfer> transfers = GiveRows(rows, min_rows);
    for (const RowTransfer& transfer : transfers) {
      ASSERT_GE(transfer.rows, min_rows);
      given[transfer.from] += transfer.rows;
      borrowed[transfer.to] += transfer.rows;
    }
    const std::vector<int32_t> computed = ComputedRows(rows, transfers);
    ASSERT_EQ(std::accumulate(computed.begin(), computed.end(), 0), std::accumulate(rows.begin(), rows.end(), 0));
    for (size_t r = 0; r < rows.size(); ++r) {
      ASSERT_EQ(computed[r], rows[r] - given[r] + borrowed[r]);
      ASSERT_TRUE(given[r] == 0 || borrowed[r] == 0);
      ASSERT_LE(computed[r], *std::max_element(rows.begin(), rows.end()));
      if (given[r] > 0) {
        ASSERT_GE(computed[r], mean);
      }
      if (borrowed[r] > 0) {
        ASSERT_LE(computed[r], mean + min_rows);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard::batching
