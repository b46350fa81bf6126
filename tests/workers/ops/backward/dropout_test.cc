// The random numbers of training, and what drops rows by them.
#include "workers/ops/dropout/dropout.h"

#include <array>
#include <cmath>
#include <set>

#include "scheduler/base/split_mix.h"
#include "tests/workers/ops/backward/backward_test_util.h"

namespace switchyard::ops {
namespace {

// The first numbers of SplitMix64 of seed 1234567, as its authors' code gives them.
TEST(CounterRandomTest, IsSplitMix64) {
  constexpr uint64_t kKnown[] = {6457827717110365317ull, 3203168211198807973ull, 9817491932198370423ull,
                                 4593380528125082431ull, 16408922859458223821ull};
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(Draw(1234567, i), kKnown[i]) << i;
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(Draw(~i, 7 * i), SplitMix(~i + 7 * i * kSplitMixStep));
}

// Jobs go on with them.
TEST(CounterRandomTest, KeysAreFrozen) {
  const uint64_t row = RowKey(StepKey(42, 7), 3, 11);
  EXPECT_EQ(row, Draw(Draw(Draw(Draw(42 ^ 0x73776974636879ull, 0), 7), 3), 11));
  EXPECT_EQ(SiteKey(row, static_cast<uint64_t>(NoiseSite::kFeedForward), 5), Draw(Draw(row, 3), 5));
  EXPECT_EQ(static_cast<int>(NoiseSite::kAdapter), 8);
  EXPECT_EQ(DropThreshold(0.25), uint64_t{1} << 30);
  EXPECT_EQ(DropThreshold(std::nextafter(1.0, 0.0)), 0xffffffffull);
}

// Fixed numbers, so that limits of 4.5 standard deviations cannot fail by chance: neighbours by each part of the key,
// and by the site, are independent.
TEST(CounterRandomTest, NeighboursAreIndependent) {
  constexpr int64_t kSide = 8, kColumns = 512;
  constexpr double kRate = 0.3;
  const auto kept = [&](std::array<int64_t, 6> at, int64_t column) -> double {  // step, sequence, position, site, layer
    const uint64_t row = RowKey(StepKey(static_cast<uint64_t>(at[5]), at[0] + 1), at[1], at[2]);
    return Keeps(SiteKey(row, static_cast<uint64_t>(at[3]), at[4]), column, DropThreshold(kRate)) ? 1 : 0;
  };
  const double variance = kRate * (1 - kRate);
  double sum = 0;
  std::array<double, 7> products = {};
  int64_t count = 0;
  for (int64_t i = 0; i < kSide * kSide * kSide; ++i) {
    const std::array<int64_t, 6> at = {i % kSide, i / kSide % kSide, i / kSide / kSide, i % 5, i % 3, 9};
    for (int64_t c = 0; c < kColumns; ++c, ++count) {
      const double here = kept(at, c) - (1 - kRate);
      sum += here;
      for (size_t part = 0; part < 6; ++part) {
        std::array<int64_t, 6> next = at;
        ++next[part];
        products[part] += here * (kept(next, c) - (1 - kRate));
      }
      products[6] += here * (kept(at, c + 1) - (1 - kRate));
    }
  }
  const double n = static_cast<double>(count);
  EXPECT_LT(std::abs(sum), 4.5 * std::sqrt(n * variance));
  for (const double product : products) EXPECT_LT(std::abs(product), 4.5 * std::sqrt(n) * variance);
}

TEST(CounterRandomTest, EveryBitIsHalfOfTheTime) {
  constexpr int kCount = 100'000;
  std::array<int, 64> ones = {};
  std::set<uint64_t> different;
  for (int i = 0; i < kCount; ++i) {
    const uint64_t draw = Draw(RowKey(StepKey(1, 1), i % 100, i / 100), 0);
    different.insert(draw);
    for (int bit = 0; bit < 64; ++bit) ones[bit] += static_cast<int>(draw >> bit & 1);
  }
  EXPECT_EQ(different.size(), static_cast<size_t>(kCount));
  for (const int count : ones) EXPECT_NEAR(count, kCount / 2, 4.5 * std::sqrt(kCount) / 2);
}

class DropoutTest : public OpTest {
 protected:
  std::vector<uint64_t> Keys(int64_t rows) const {
    std::vector<uint64_t> keys;
    for (int64_t t = 0; t < rows; ++t) keys.push_back(RowKey(StepKey(5, 3), t / 4, t % 4));
    return keys;
  }
};

// y in this dtype, and in what it accumulates in.
TEST_P(DropoutTest, DropsByKeysAndScalesTheRest) {
  constexpr int64_t kRows = 70, kWidth = 33;
  const std::vector<uint64_t> keys = Keys(kRows);
  const NoiseDesc desc = {.rate = 0.4, .row_keys = keys, .site = NoiseSite::kAttentionOut, .layer = 2};
  const Tensor x = RandomMatrix(dtype(), kRows, kWidth, 1);
  for (const DType to : {dtype(), acc()}) {
    const Tensor y(to, x.shape()), sum = RandomMatrix(to, kRows, kWidth, 2), before = Copy(sum);
    ASSERT_TRUE(Dropout(stream(), desc, x, y).ok());
    ASSERT_TRUE(AddDropped(stream(), desc, x, sum).ok());
    int64_t dropped = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      std::vector<double> want, wanted_sum;
      for (int64_t j = 0; j < kWidth; ++j) {
        const bool drops = static_cast<double>(SplitMix(SiteKey(keys[t], 2, 2) + j * kSplitMixStep) >> 32) <
                           std::floor(0.4 * 4294967296.0);
        dropped += drops ? 1 : 0;
        want.push_back(drops ? 0 : Get(x, t, j) / 0.6);
        wanted_sum.push_back(Get(before, t, j) + want.back());
        if (drops) EXPECT_EQ(Get(y, t, j), 0);
      }
      ExpectNear(RowOf(y, t), want, reference::ReductionTolerance(dtype()), absl::StrCat("row ", t));
      ExpectNear(RowOf(sum, t), wanted_sum, reference::ReductionTolerance(dtype()), absl::StrCat("sum of row ", t));
    }
    EXPECT_NEAR(static_cast<double>(dropped), 0.4 * kRows * kWidth, 4.5 * std::sqrt(0.24 * kRows * kWidth));
    const Tensor in_place = Copy(x);
    ASSERT_TRUE(Dropout(stream(), desc, in_place, in_place).ok());
    if (to == dtype()) EXPECT_TRUE(SameBits(in_place, 0, y));
  }
}

TEST_P(DropoutTest, JitterIsUniform) {
  constexpr int64_t kRows = 64, kWidth = 50;
  const std::vector<uint64_t> keys = Keys(kRows);
  const Tensor x(dtype(), {kRows, kWidth});
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t j = 0; j < kWidth; ++j) Set(x, t, j, 1);
  }
  ASSERT_TRUE(Jitter(stream(), {.rate = 0.25, .row_keys = keys, .site = NoiseSite::kRouter, .layer = 1}, x).ok());
  double sum = 0, squares = 0;
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t j = 0; j < kWidth; ++j) {
      const double value = Get(x, t, j);
      EXPECT_GE(value, 0.75);
      EXPECT_LE(value, 1.25);
      sum += value - 1;
      squares += (value - 1) * (value - 1);
    }
  }
  const double count = kRows * kWidth, variance = 0.25 / 12;
  EXPECT_LT(std::abs(sum), 4.5 * std::sqrt(count * variance));
  EXPECT_NEAR(squares / count, variance, 0.1 * variance);
}

TEST_P(DropoutTest, RowsAndThreadsDoNotMatter) {
  constexpr int64_t kRows = 130;
  const std::vector<uint64_t> keys = Keys(kRows);
  const Tensor x = RandomMatrix(dtype(), kRows, 40, 3);
  ExpectRowsIgnoreCompany(kRows, [&](const Stream& stream, int64_t begin, int64_t count) {
    const Tensor y = Copy(x.view().Rows(begin, count));
    const NoiseDesc desc = {.rate = 0.5, .row_keys = absl::MakeConstSpan(keys).subspan(begin, count)};
    EXPECT_TRUE(Dropout(stream, desc, y, y).ok());
    EXPECT_TRUE(Jitter(stream, desc, y).ok());
    return Copy(y);
  });
}

TEST_P(DropoutTest, MisfitsAreNamed) {
  const std::vector<uint64_t> keys = Keys(3);
  const Tensor x(dtype(), {3, 4}), other(dtype(), {3, 5});
  for (const double rate : {1.0, -0.1, std::nan("")}) {
    ExpectNames(Dropout(stream(), {.rate = rate, .row_keys = keys}, x, x), "is outside [0, 1)");
  }
  ExpectNames(AddDropped(stream(), {.rate = 0.5, .row_keys = keys}, x, other), "y must be");
  ExpectNames(Jitter(stream(), {.rate = 0.5, .row_keys = absl::MakeConstSpan(keys).first(2)}, x), "2 keys for 3 rows");
}

SY_INSTANTIATE_OP_TEST(DropoutTest, kAllDTypes);

}  // namespace
}  // namespace switchyard::ops
