#include "tests/workers/ops/backward/backward_test_util.h"
#include "workers/ops/rope/rope.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kHeadDim = 12, kRotary = 8, kTokens = 70;

class RopeBackwardTest : public OpTest {
 protected:
  RopeBackwardTest() {
    for (int32_t t = 0; t < kTokens; ++t) positions_.push_back(t * 7 % 128);
  }

  const RopeTable table_ = RopeTable::Build({.theta = 100, .rotary_dim = kRotary}, 128, acc()).value();
  std::vector<int32_t> positions_;
  const Tensor x_ = RandomMatrix(dtype(), kTokens, 4 * kHeadDim, 1);
};
class RopeBackwardF64Test : public RopeBackwardTest {};

// Turning back what was turned gives the row again; so does the transpose, which a rotation's inverse is.
TEST_P(RopeBackwardTest, TurnsBack) {
  const Tensor x = Copy(x_), before = Copy(x);
  ASSERT_TRUE(ApplyRope(stream(), table_, kHeadDim, positions_, x).ok());
  ASSERT_FALSE(SameBits(x, 0, before));
  ASSERT_TRUE(ApplyRopeBackward(stream(), table_, kHeadDim, positions_, x).ok());
  for (int64_t r = 0; r < kTokens; ++r) {
    ExpectNear(RowOf(x, r), RowOf(before, r), {2 * reference::ElementwiseTolerance(dtype()).relative}, "row");
  }
}

// The attention factor is part of the transpose: twice the way is its square.
TEST_P(RopeBackwardTest, KeepsTheAttentionFactor) {
  const RopeTable table = RopeTable::Build({.kind = RopeKind::kYarn,
                                            .rotary_dim = kHeadDim,
                                            .factor = 4,
                                            .original_max_positions = 32,
                                            .attention_factor = 1.5},
                                           128, acc())
                              .value();
  const Tensor x = Copy(x_), before = Copy(x);
  ASSERT_TRUE(ApplyRope(stream(), table, kHeadDim, positions_, x).ok());
  ASSERT_TRUE(ApplyRopeBackward(stream(), table, kHeadDim, positions_, x).ok());
  for (int64_t r = 0; r < kTokens; ++r) {
    std::vector<double> want = RowOf(before, r);
    for (double& v : want) v *= 2.25;
    ExpectNear(RowOf(x, r), want, {2 * reference::ElementwiseTolerance(dtype()).relative}, "row");
  }
}

TEST_P(RopeBackwardF64Test, IsTheGradientOfRope) {
  const Tensor x = Copy(x_.view().Rows(0, 3)), up = RandomMatrix(dtype(), 3, 4 * kHeadDim, 2), d = Copy(up);
  const std::vector<int32_t> positions(positions_.begin(), positions_.begin() + 3);
  ASSERT_TRUE(ApplyRopeBackward(stream(), table_, kHeadDim, positions, d).ok());
  ExpectIsGradient(x, d, [&] {
    const Tensor y = Copy(x);
    SY_CHECK_OK(ApplyRope(stream(), table_, kHeadDim, positions, y));
    return Dot(y, up);
  });
}

TEST_P(RopeBackwardTest, MisfitsAreNamed) {
  ExpectNames(ApplyRopeBackward(stream(), table_, kHeadDim, {1, 2}, x_), "rope_backward: x is");
  ExpectNames(ApplyRopeBackward(stream(), table_, 6, positions_, x_), "rotary_dim 8 do not fit");
  positions_[3] = 128;
  ExpectNames(ApplyRopeBackward(stream(), table_, kHeadDim, positions_, x_), "table rows[3] = 128 is outside");
}

SY_INSTANTIATE_OP_TEST(RopeBackwardTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(RopeBackwardF64Test, {DType::kF64});

}  // namespace
}  // namespace switchyard::ops
