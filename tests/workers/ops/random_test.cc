#include "workers/ops/sampling/random.h"

#include <set>

#include "gtest/gtest.h"

namespace switchyard::ops {
namespace {

// Known answers published with the Random123 library (kat_vectors, philox4x32 with 10 rounds).
TEST(PhiloxTest, KnownAnswers) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SampleUniformTest, DependsOnSeedChoiceAndIndexAlone) {
  std::set<double> seen;
  for (uint64_t seed : {0ull, 1ull, 1ull << 32, ~0ull}) {
    for (uint32_t choice = 0; choice < 3; ++choice) {
      for (uint32_t index = 0; index < 100; ++index) {
        const double u = SampleUniform(seed, choice, index);
        EXPECT_GE(u, 0.0);
        EXPECT_LT(u, 1.0);
        EXPECT_EQ(u, SampleUniform(seed, choice, index));
        seen.insert(u);
      }
    }
  }
  EXPECT_EQ(seen.size(), 4u * 3 * 100);
}

TEST(SampleUniformTest, MeanAndVarianceAreThoseOfTheUniform) {
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = SampleUniform(42, 0, i);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 0.005);
}

}  // namespace
}  // namespace switchyard::ops
