#include "workers/ops/rope/rope.h"

#include "tests/reference/row_ops.h"
#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {
namespace {

class RopeTest : public OpTest {};

TEST_P(RopeTest, MatchesReference) {
  for (int64_t rotary : {8, 24, 40}) {
    const int64_t head_dim = 40, heads = 3;
    const RopeTable table = RopeTable::Build({.theta = 10000, .rotary_dim = rotary}, 64, acc()).value();
    const Tensor x = RandomMatrix(dtype(), 4, heads * head_dim, 1);
    const Tensor before = Copy(x);
    const std::vector<int32_t> positions = {0, 1, 17, 63};
    ASSERT_TRUE(ApplyRope(stream(), table, head_dim, positions, x).ok());
    const RopeFrequencies f = ComputeRopeFrequencies({.theta = 10000, .rotary_dim = rotary}, acc()).value();
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        const auto head = [&](const Tensor& t) { return RowOf(t.view().Columns(h * head_dim, head_dim), r); };
        // fp32 angles are rounded (as in HF): 64 · 2^-24 of a turn at most.
        ExpectNear(head(x), reference::Rope(head(before), f.inv_freq, 1.0, positions[r]),
                   {std::max(reference::ElementwiseTolerance(dtype()).relative, acc() == DType::kF32 ? 4e-6 : 0.0)},
                   "rotary " + std::to_string(rotary));
      }
    }
  }
}

TEST_P(RopeTest, RowsIgnoreCompany) {
  const RopeTable table = RopeTable::Build({.rotary_dim = 24}, 512, acc()).value();
  const Tensor x = RandomMatrix(dtype(), 512, 72, 5);
  std::vector<int32_t> positions(512);
  for (int i = 0; i < 512; ++i) positions[i] = i * 7 % 512;
  ExpectRowsIgnoreCompany(512, [&](const Stream& stream, int64_t begin, int64_t count) {
    Tensor y = Copy(x.view().Rows(begin, count));
    EXPECT_TRUE(ApplyRope(stream, table, 24, absl::MakeSpan(positions).subspan(begin, count), y).ok());
    return y;
  });
}

TEST_P(RopeTest, ARowOutsideTheTableIsNamed) {
  const RopeTable table = RopeTable::Build({.rotary_dim = 8}, 16, acc()).value();
  const Tensor x = RandomMatrix(dtype(), 2, 8, 5);
  const absl::Status status = ApplyRope(stream(), table, 8, {3, 16}, x);
  EXPECT_EQ(status.message(), "rope: table rows[1] = 16 is outside [0, 16)");
}

TEST_P(RopeTest, WithoutRotationRowsStayAsTheyAreAndAreStillPositions) {
  const RopeTable table = RopeTable::WithoutRotation(5, acc());
  const Tensor x = RandomMatrix(dtype(), 3, 32, 1), before = Copy(x);
  ASSERT_TRUE(ApplyRope(stream(), table, 16, {4, 0, 2}, x).ok());
  EXPECT_TRUE(SameBits(x, 0, before));
  EXPECT_EQ(table.max_positions(), 5);
  EXPECT_EQ(table.RowOf(4, 3), 4);
  EXPECT_EQ(ApplyRope(stream(), table, 16, {4, 5, 2}, x).message(), "rope: table rows[1] = 5 is outside [0, 5)");
}

SY_INSTANTIATE_OP_TEST(RopeTest, kAllDTypes);

// Frequencies that transformers computes for a config of each kind: tests/golden/ops/make_rope_scaling.py.
struct ScalingCase {
  const char* name;
  RopeConfig config;
  std::vector<double> inv_freq;
  double attention_factor;
};

class RopeScalingTest : public testing::TestWithParam<ScalingCase> {};

TEST_P(RopeScalingTest, MatchesHuggingFace) {
  const RopeFrequencies f = ComputeRopeFrequencies(GetParam().config, DType::kF32).value();
  ASSERT_EQ(f.inv_freq.size(), GetParam().inv_freq.size());
  for (size_t j = 0; j < f.inv_freq.size(); ++j) {
    EXPECT_NEAR(f.inv_freq[j], GetParam().inv_freq[j], 3e-7 * GetParam().inv_freq[j]) << j;
  }
  EXPECT_NEAR(f.attention_factor, GetParam().attention_factor, 1e-9);
}

const std::vector<ScalingCase> kScalingCases = {
#include "tests/golden/ops/rope_scaling.inc"
};

INSTANTIATE_TEST_SUITE_P(Kinds, RopeScalingTest, testing::ValuesIn(kScalingCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RopeConfigTest, BadConfigsAreRefused) {
  EXPECT_FALSE(RopeTable::Build({.rotary_dim = 7}, 8, DType::kF32).ok());
  EXPECT_FALSE(RopeTable::Build({.rotary_dim = 8}, 0, DType::kF32).ok());
  EXPECT_FALSE(RopeTable::Build({.theta = 0, .rotary_dim = 8}, 8, DType::kF32).ok());
  EXPECT_FALSE(RopeTable::Build({.kind = RopeKind::kYarn, .rotary_dim = 8}, 8, DType::kF32).ok());
  RopeConfig longrope = {.kind = RopeKind::kLongRope, .rotary_dim = 8, .original_max_positions = 64};
  longrope.short_factor = {1, 1, 1};
  EXPECT_EQ(RopeTable::Build(longrope, 8, DType::kF32).status().message(),
            "rope: short_factor has 3 entries, rotary_dim / 2 is 4");
}

// Row by row against tables of one list alone.
TEST(RopeConfigTest, LongropeChoosesByPromptAndPosition) {
  RopeConfig config = {.kind = RopeKind::kLongRope, .rotary_dim = 8, .factor = 4, .original_max_positions = 64};
  config.short_factor = {1, 1.1, 1.3, 2};
  config.long_factor = {2, 3, 5, 7};
  const auto angles = [&](bool long_factors) {
    RopeConfig one = config;
    (long_factors ? one.short_factor : one.long_factor) = long_factors ? config.long_factor : config.short_factor;
    return RopeTable::Build(one, 100, DType::kF32).value();
  };
  const RopeTable table = RopeTable::Build(config, 100, DType::kF32).value();
  const RopeTable all_short = angles(false), all_long = angles(true);
  EXPECT_EQ(table.long_above(), 64);
  EXPECT_EQ(table.max_positions(), 100);
  for (const int64_t prompt : {1, 63, 64, 65, 100}) {
    for (int32_t position = 0; position < 100; ++position) {
      const RopeTable& expected = prompt > 64 || position >= 64 ? all_long : all_short;
      const int64_t row = table.RowOf(position, prompt);
      ASSERT_LT(row, table.num_rows());
      EXPECT_EQ(RowOf(table.cos(), row), RowOf(expected.cos(), position)) << prompt << " " << position;
      EXPECT_EQ(RowOf(table.sin(), row), RowOf(expected.sin(), position)) << prompt << " " << position;
    }
  }
  EXPECT_NE(RowOf(all_short.cos(), 50), RowOf(all_long.cos(), 50));
  // A context that the training covers needs no second kind.
  const RopeTable covered = RopeTable::Build(config, 64, DType::kF32).value();
  EXPECT_EQ(covered.long_above(), 0);
  EXPECT_EQ(covered.num_rows(), 64);
  EXPECT_EQ(covered.RowOf(63, 64), 63);
  EXPECT_EQ((RopeConfig{.kind = RopeKind::kYarn, .original_max_positions = 64}.LongAbove(100)), 0);
}

TEST(RopeConfigTest, AttentionFactorMultipliesCosAndSin) {
  const RopeConfig config = {.kind = RopeKind::kYarn, .rotary_dim = 8, .factor = 4, .original_max_positions = 64};
  const RopeTable table = RopeTable::Build(config, 2, DType::kF32).value();
  EXPECT_FLOAT_EQ(table.cos().data<float>()[0], 0.1 * std::log(4.0) + 1);
  EXPECT_FLOAT_EQ(table.sin().data<float>()[0], 0);
}

}  // namespace
}  // namespace switchyard::ops
