#include "workers/ops/attention/kv_format.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace switchyard::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> Normal(int count, float spread) {
  std::mt19937 source(7);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& each : x) each = normal(source);
  return x;
}

// Of a code that is a number.
float E4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude =
      std::ldexp(static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa), std::max(exponent, 1) - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(KvFormatTest, Int8IsNearest) {
  for (const float spread : {1e-12F, 1.0F, 1e20F}) {
    const std::vector<float> x = Normal(128, spread);
    std::vector<uint8_t> numbers(x.size());
    const float scale = QuantizeKey(KvFormat::kInt8, x.data(), 128, numbers.data());
    int most = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const int number = static_cast<int8_t>(numbers[i]);
      most = std::max(most, std::abs(number));
      EXPECT_LE(std::fabs(x[i] - static_cast<float>(number) * scale), scale * 0.5001F);
    }
    EXPECT_EQ(most, 127);
  }
}

// Beside all 254 values.
TEST(KvFormatTest, Fp8IsNearest) {
  std::vector<float> x = Normal(512, 20);
  x[0] = 448, x[1] = -448;
  for (int i = 0; i < 64; ++i)
    x[static_cast<size_t>(2 + i)] = std::ldexp(static_cast<float>(i - 32), -11);           // subnormal, and ties
  for (int code = 1; code < 0x7e; ++code) x.push_back((E4m3(code) + E4m3(code + 1)) / 2);  // ties
  std::vector<uint8_t> numbers(x.size());
  ASSERT_EQ(QuantizeKey(KvFormat::kFp8, x.data(), static_cast<int64_t>(x.size()), numbers.data()), 1);
  for (size_t i = 0; i < x.size(); ++i) {
    float least = kInfinity;
    for (int code = 0; code < 256; ++code) {
      if ((code & 0x7f) != 0x7f) least = std::min(least, std::fabs(E4m3(code) - x[i]));
    }
    EXPECT_EQ(std::fabs(E4m3(numbers[i]) - x[i]), least) << x[i];
    for (const int beside : {numbers[i] - 1, numbers[i] + 1}) {
      if ((beside & 0x7f) == 0x7f || beside < 0 || std::fabs(E4m3(beside) - x[i]) > least) continue;
      EXPECT_EQ(numbers[i] & 1, 0) << x[i] << ": ties to even";
    }
  }
}

TEST(KvFormatTest, ZerosStayAndWhatIsNotFiniteShows) {
  for (const KvFormat format : {KvFormat::kInt8, KvFormat::kFp8}) {
    std::vector<float> x(5, 0.0F);
    std::vector<uint8_t> numbers(5, 9);
    EXPECT_GT(QuantizeKey(format, x.data(), 5, numbers.data()), 0);
    EXPECT_EQ(numbers, std::vector<uint8_t>(5, 0));
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      x[3] = bad;
      EXPECT_TRUE(std::isnan(QuantizeKey(format, x.data(), 5, numbers.data())));
    }
  }
}

TEST(KvFormatTest, Names) {
  for (const KvFormat format : {KvFormat::kPlain, KvFormat::kInt8, KvFormat::kFp8}) {
    EXPECT_EQ(FindKvFormat(KvFormatName(format)), format);
  }
  EXPECT_EQ(FindKvFormat("fp4"), std::nullopt);
}

}  // namespace
}  // namespace switchyard::ops
