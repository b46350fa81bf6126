#include "workers/ops/rope/qkv_backward.h"

#include "tests/reference/backward_ops.h"
#include "tests/workers/ops/backward/backward_test_util.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 12, kRotary = 8, kTokens = 70;
constexpr int64_t kQ = kHeads * kDim, kKv = kKvHeads * kDim, kWidth = kQ + 2 * kKv;

class QkvBackwardTest : public OpTest {
 protected:
  QkvBackwardTest()
      : table_(RopeTable::Build({.theta = 100, .rotary_dim = kRotary}, 128, acc()).value()),
        raw_(RandomMatrix(dtype(), kTokens, kWidth, 1)),
        d_(RandomMatrix(dtype(), kTokens, kWidth, 2)) {
    for (int32_t t = 0; t < kTokens; ++t) positions_.push_back(t * 7 % 128);
  }

  // per_head: norms of [D], else of whole rows.
  QkvDesc Desc(bool norms, bool per_head, double clip) {
    QkvDesc desc = {.num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = kDim, .eps = 1e-5, .clip = clip};
    if (!norms) return desc;
    q_gamma_ = RandomMatrix(dtype(), 1, per_head ? kDim : kQ, 3);
    k_gamma_ = RandomMatrix(dtype(), 1, per_head ? kDim : kKv, 4);
    dq_norm_ = Tensor::Zeros(acc(), q_gamma_.shape()), dk_norm_ = Tensor::Zeros(acc(), k_gamma_.shape());
    desc.q_norm = q_gamma_.view().Reshape({q_gamma_.dim(1)}), desc.k_norm = k_gamma_.view().Reshape({k_gamma_.dim(1)});
    return desc;
  }
  QkvGradients Gradients(const TensorView& d) const {
    QkvGradients gradients = {.dqkv = d};
    if (dq_norm_.dim(1) > 0) gradients.dq_norm = dq_norm_.view().Reshape({dq_norm_.dim(1)});
    if (dk_norm_.dim(1) > 0) gradients.dk_norm = dk_norm_.view().Reshape({dk_norm_.dim(1)});
    return gradients;
  }

  const RopeTable table_;
  std::vector<int32_t> positions_;
  const Tensor raw_, d_;
  Tensor q_gamma_, k_gamma_, dq_norm_, dk_norm_;
};
class QkvBackwardF64Test : public QkvBackwardTest {};

// Every dtype against the pieces in double: only the norm, since rope and clip are tested by themselves.
TEST_P(QkvBackwardTest, NormsAndClip) {
  const double clip = 0.5;
  const QkvDesc desc = Desc(true, true, clip);
  const Tensor d = Copy(d_);
  const std::vector<int32_t> still(kTokens, 0);  // position 0 is not turned
  ASSERT_TRUE(PrepareQkvBackward(stream(), desc, table_, still, raw_, Gradients(d)).ok());
  const Tensor normed = Copy(raw_);
  QkvDesc unclipped = desc;
  unclipped.clip = 0;
  ASSERT_TRUE(PrepareQkv(stream(), unclipped, table_, still, normed).ok());
  for (int64_t r = 0; r < kTokens; ++r) {
    for (int64_t column = 0; column < kWidth; column += kDim) {
      std::vector<double> dy = RowOf(d_.view().Columns(column, kDim), r);
      for (int64_t j = 0; j < kDim; ++j) dy[j] = std::abs(Get(normed, r, column + j)) > clip ? 0 : dy[j];
      if (column < kQ + kKv) {
        const std::vector<double> gamma = RowOf(column < kQ ? q_gamma_ : k_gamma_, 0);
        dy = reference::RmsNormBackward(RowOf(raw_.view().Columns(column, kDim), r), gamma, 1e-5, dy).dx;
      }
      ExpectNear(RowOf(d.view().Columns(column, kDim), r), dy, reference::ReductionTolerance(dtype()),
                 absl::StrCat("row ", r, " column ", column));
    }
  }
}

TEST_P(QkvBackwardTest, ThreadsDoNotMatter) {
  for (bool per_head : {true, false}) {
    const QkvDesc desc = Desc(true, per_head, 0.5);
    ExpectThreadsDoNotMatter([&](const Stream& stream) {
      std::memset(dq_norm_.view().raw(), 0, dq_norm_.bytes());
      Tensor d = Copy(d_);
      EXPECT_TRUE(PrepareQkvBackward(stream, desc, table_, positions_, raw_, Gradients(d)).ok());
      for (int64_t j = 0; j < dq_norm_.dim(1); ++j) Set(d, j, 0, Get(dq_norm_, 0, j));
      return d;
    });
  }
}

TEST_P(QkvBackwardF64Test, IsTheGradientOfPrepareQkv) {
  for (const auto& [norms, per_head, clip] : std::vector<std::tuple<bool, bool, double>>{
           {false, false, 0}, {true, true, 0.7}, {true, false, 0}, {true, false, 0.7}}) {
    const QkvDesc desc = Desc(norms, per_head, clip);
    const Tensor d = Copy(d_.view().Rows(0, 3)), raw = Copy(raw_.view().Rows(0, 3)), up = Copy(d);
    const std::vector<int32_t> positions(positions_.begin(), positions_.begin() + 3);
    ASSERT_TRUE(PrepareQkvBackward(stream(), desc, table_, positions, raw, Gradients(d)).ok());
    const auto loss = [&] {
      const Tensor y = Copy(raw);
      SY_CHECK_OK(PrepareQkv(stream(), desc, table_, positions, y));
      return Dot(y, up);
    };
    ExpectIsGradient(raw, d, loss);
    if (!norms) continue;
    ExpectIsGradient(q_gamma_, dq_norm_, loss);
    ExpectIsGradient(k_gamma_, dk_norm_, loss);
  }
}

TEST_P(QkvBackwardTest, MisfitsAreNamed) {
  const QkvDesc desc = Desc(true, true, 0);
  const Tensor d = Copy(d_), narrow(dtype(), {kTokens, kWidth - 1}), wrong(acc(), {kDim + 1});
  ExpectNames(PrepareQkvBackward(stream(), desc, table_, positions_, narrow, Gradients(d)), "4 + 2 * 2 heads of 12");
  ExpectNames(PrepareQkvBackward(stream(), desc, table_, positions_, raw_, Gradients(narrow)), "dqkv must be");
  ExpectNames(PrepareQkvBackward(stream(), desc, table_, {1, 2}, raw_, Gradients(d)), "table rows are 2");
  QkvGradients gradients = Gradients(d);
  gradients.dq_norm = wrong;
  ExpectNames(PrepareQkvBackward(stream(), desc, table_, positions_, raw_, gradients), "dgamma must be");
}

SY_INSTANTIATE_OP_TEST(QkvBackwardTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(QkvBackwardF64Test, {DType::kF64});

}  // namespace
}  // namespace switchyard::ops
