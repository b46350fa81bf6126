#include "workers/ops/embedding/embedding_backward.h"

#include "tests/workers/ops/backward/backward_test_util.h"

namespace switchyard::ops {
namespace {

class EmbedBackwardTest : public OpTest {};

// One token after another, in the accumulator's arithmetic: the same bits.
TEST_P(EmbedBackwardTest, AddsInTheOrderOfTokens) {
  std::vector<int32_t> tokens;
  for (int32_t t = 0; t < 90; ++t) tokens.push_back(t * t % 13);
  for (int64_t width : {1, 16, 37, 200}) {
    const Tensor wide = RandomMatrix(dtype(), 90, width + 5, 1), start = RandomMatrix(dtype(), 14, width, 2);
    const TensorView d = wide.view().Columns(3, width);
    const Tensor want = Copy(start);
    for (int64_t t = 0; t < 90; ++t) {
      for (int64_t j = 0; j < width; ++j) {
        VisitDType(dtype(), [&]<class Elem>() {
          Elem& sum = want.view().row<Elem>(tokens[t])[j];
          sum = Elem(static_cast<Acc<Elem>>(sum) + static_cast<Acc<Elem>>(d.row<Elem>(t)[j]));
        });
      }
    }
    ExpectThreadsDoNotMatter([&](const Stream& stream) {
      Tensor gradient = Copy(start);
      EXPECT_TRUE(EmbedBackward(stream, tokens, d, gradient).ok());
      EXPECT_TRUE(SameBits(gradient, 0, want)) << "width " << width;
      return gradient;
    });
  }
}

TEST_P(EmbedBackwardTest, MisfitsAreNamed) {
  const Tensor d(dtype(), {2, 8}), gradient(dtype(), {5, 8});
  EXPECT_TRUE(EmbedBackward(stream(), {}, d.view().Rows(0, 0), gradient).ok());
  ExpectNames(EmbedBackward(stream(), {1, 5}, d, gradient), "tokens[1] = 5");
  ExpectNames(EmbedBackward(stream(), {1}, d, gradient), "d must be");
  ExpectNames(EmbedBackward(stream(), {1, 2}, d, Tensor(DType::kBf16, {5, 8})), "gradient must be fp32");
}

SY_INSTANTIATE_OP_TEST(EmbedBackwardTest, kAccDTypes);

}  // namespace
}  // namespace switchyard::ops
