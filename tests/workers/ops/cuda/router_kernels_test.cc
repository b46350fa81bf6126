// Routing, the order of rows by expert and counts per expert, against the CPU's.
#include <limits>
#include <numeric>

#include "tests/workers/ops/cuda/kernel_testing.h"
#include "workers/ops/router/router.h"

namespace switchyard::ops {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Routes {
  Tensor idx, weight;
};

class RouterKernelsTest : public KernelTest {
 protected:
  Routes OnCpu(const TensorView& logits, int64_t top_k, bool renormalize) {
    Routes out = {.idx = Tensor(DType::kI32, {logits.dim(0), top_k}),
                  .weight = Tensor(dtype(), {logits.dim(0), top_k})};
    RouterArgs args = Args(logits.dim(1), top_k, renormalize);
    args.logits = logits.raw(), args.topk_idx = out.idx.data<int32_t>(), args.topk_weight = out.weight.view().raw();
    args.logits_stride = logits.row_stride(), args.idx_stride = args.weight_stride = top_k;
    CpuKernels().router(args, 0, logits.dim(0));
    return out;
  }
  Routes OnDevice(const TensorView& logits, int64_t top_k, bool renormalize, const MatrixLayout& layout,
                  const int32_t* num_rows = nullptr, const void* bias = nullptr) {
    const int64_t rows = logits.dim(0);
    const DeviceMatrix from = ToDevice(logits, layout), idx = PoisonOnDevice(DType::kI32, rows, top_k, layout);
    const DeviceMatrix weight = PoisonOnDevice(dtype(), rows, top_k, layout);
    RouterArgs args = Args(logits.dim(1), top_k, renormalize);
    args.logits = from.get(), args.topk_idx = static_cast<int32_t*>(idx.get()), args.topk_weight = weight.get();
    args.logits_stride = from.stride(), args.idx_stride = idx.stride(), args.weight_stride = weight.stride();
    EXPECT_EQ(cuda::Router(call(), {.router = args, .num_rows = num_rows, .bias = bias}, rows), 0);
    return {.idx = idx.Download(), .weight = weight.Download()};
  }

 private:
  RouterArgs Args(int64_t experts, int64_t top_k, bool renormalize) const {
    RouterArgs args{};
    args.dtype = code();
    args.experts = experts, args.top_k = top_k, args.renormalize = renormalize;
    return args;
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, RouterKernelsTest, testing::ValuesIn(kAccDTypes), KernelTestName);

TEST_P(RouterKernelsTest, ChoosesAsTheCpu) {
  struct Shape {
    int64_t rows, experts, top_k;
  };
  for (const Shape& s : {Shape{5, 8, 2}, Shape{1, 1, 1}, Shape{6, 60, 4}, Shape{3, 128, 8}, Shape{2, 130, 40},
                         Shape{2, 512, 64}, Shape{1, 1024, 64}, Shape{0, 64, 4}, Shape{2, 40, 40}}) {
    const Tensor logits = RandomMatrix(dtype(), s.rows, s.experts, 1, 2.0);
    for (bool renormalize : {false, true}) {
      const Routes want = OnCpu(logits.view(), s.top_k, renormalize);
      for (const MatrixLayout& layout : kLayouts) {
        const Routes got = OnDevice(logits.view(), s.top_k, renormalize, layout);
        const std::string where = std::to_string(s.experts) + " experts, " + layout.name;
        EXPECT_TRUE(SameBits(got.idx.view(), 0, want.idx.view())) << where;
        ExpectLikeCpu(got.weight.view(), want.weight.view(), /*exact=*/dtype() == DType::kF32, where);
      }
    }
  }
}

TEST_P(RouterKernelsTest, TiesGoToTheSmallerIdAndBrokenRowsShow) {
  const int64_t experts = 70;
  Tensor logits = RandomMatrix(dtype(), 7, experts, 2);
  for (int64_t e = 0; e < experts; ++e) {
    Set(logits.view(), 0, e, 1.0);                      // all equal
    Set(logits.view(), 1, e, e % 3 == 0 ? 2.0 : -0.0);  // some equal
    Set(logits.view(), 2, e, kNan);
    Set(logits.view(), 3, e, -kInf);
    Set(logits.view(), 4, e, e < 68 ? kNan : -kInf);  // fewer numbers than K
  }
  Set(logits.view(), 1, 5, 0.0);
  Set(logits.view(), 5, 33, kNan);
  Set(logits.view(), 6, 33, kInf);
  for (int64_t top_k : {1, 6, 64}) {
    const Routes want = OnCpu(logits.view(), top_k, true), got = OnDevice(logits.view(), top_k, true, kLayouts[0]);
    EXPECT_TRUE(SameBits(got.idx.view(), 0, want.idx.view())) << "K " << top_k;
    for (int64_t r = 0; r < 7; ++r) {
      for (int64_t k = 0; k < top_k; ++k) {
        EXPECT_EQ(std::isnan(Get(got.weight.view(), r, k)), std::isnan(Get(want.weight.view(), r, k)))
            << "row " << r << " k " << k;
      }
    }
  }
}

// By RouteTopK, as the CPU's table has no kernel for it.  Of numbers such that no two scores are nearly the same.
TEST_P(RouterKernelsTest, ABiasMovesTheChoiceAsOnTheCpu) {
  ThreadPool pool(1);
  for (auto [experts, top_k] : {std::pair{1, 1}, {8, 2}, {60, 6}, {130, 40}, {1024, 64}}) {
    const Tensor logits = RandomMatrix(dtype(), 5, experts, 5), bias = RandomMatrix(dtype(), 1, experts, 6, 0.05);
    const DeviceMatrix there(bias.view());
    for (bool renormalize : {false, true}) {
      const Routes plain = OnDevice(logits.view(), top_k, renormalize, kLayouts[0]);
      const Routes want = {.idx = Tensor(DType::kI32, {5, top_k}), .weight = Tensor(dtype(), {5, top_k})};
      const RouterDesc desc = {.top_k = top_k, .renormalize = renormalize, .bias = bias.view().Reshape({experts})};
      ASSERT_TRUE(RouteTopK(Stream::OnCpu(&pool), desc, logits, want.idx, want.weight).ok());
      for (const MatrixLayout& layout : kLayouts) {
        const Routes got = OnDevice(logits.view(), top_k, renormalize, layout, nullptr, there.get());
        const std::string where = std::to_string(experts) + " experts, " + layout.name;
        EXPECT_TRUE(SameBits(got.idx.view(), 0, want.idx.view())) << where;
        ExpectLikeCpu(got.weight.view(), want.weight.view(), /*exact=*/false, where);
        EXPECT_TRUE(experts < 60 || !SameBits(plain.idx.view(), 0, got.idx.view())) << "the bias moves nothing";
      }
    }
  }
}

// With a bias, too: of equal scores the smaller id; a row with NaN has K experts, and weights that are NaN.
TEST_P(RouterKernelsTest, TiesOfBiasedScoresAndBrokenRows) {
  const Tensor logits = Tensor::Zeros(dtype(), {2, 40});
  Tensor bias(dtype(), {1, 40});
  for (int64_t e = 0; e < 40; ++e) Set(bias, 0, e, e == 7 || e == 33 ? 1.0 : 0.0);
  Set(logits, 1, 20, kNan);
  const DeviceMatrix there(bias.view());
  const Routes got = OnDevice(logits.view(), 4, false, kLayouts[0], nullptr, there.get());
  const std::vector<int32_t> want = {7, 33, 0, 1, 0, 1, 2, 3};
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(got.idx.view().data<int32_t>()[i], want[i]) << i;
  for (int64_t k = 0; k < 4; ++k) {
    EXPECT_NEAR(Get(got.weight, 0, k), 1.0 / 40, 1e-7);
    EXPECT_TRUE(std::isnan(Get(got.weight, 1, k)));
  }
}

TEST_P(RouterKernelsTest, RowsBehindTheTrueCountChooseNobody) {
  const Tensor logits = RandomMatrix(dtype(), 6, 40, 3);
  const DeviceArray<int32_t> num_rows({2});
  const Routes all = OnDevice(logits.view(), 34, false, kLayouts[0]);
  const Routes some = OnDevice(logits.view(), 34, false, kLayouts[0], num_rows.get());
  EXPECT_TRUE(SameBits(all.idx.view(), 0, some.idx.view().Rows(0, 2)));
  EXPECT_TRUE(SameBits(all.weight.view(), 0, some.weight.view().Rows(0, 2)));
  for (int64_t r = 2; r < 6; ++r) {
    EXPECT_EQ(RowOf(some.weight.view(), r), std::vector<double>(34, 0.0));
    for (int64_t k = 0; k < 34; ++k) EXPECT_EQ(some.idx.view().row<int32_t>(r)[k], -1);
  }
}

TEST_P(RouterKernelsTest, ARowIsTheSameAnywhere) {
  const Tensor logits = RandomMatrix(dtype(), 9, 100, 4);
  const DeviceMatrix bias(RandomMatrix(dtype(), 1, 100, 7, 0.05).view());
  for (const void* of_choice : {static_cast<const void*>(nullptr), static_cast<const void*>(bias.get())}) {
    const Routes whole = OnDevice(logits.view(), 7, true, kLayouts[0], nullptr, of_choice);
    for (int64_t r : {0, 3, 8}) {
      const Routes alone = OnDevice(logits.view().Rows(r, 1), 7, true, kLayouts[2], nullptr, of_choice);
      EXPECT_TRUE(SameBits(whole.idx.view(), r, alone.idx.view()));
      EXPECT_TRUE(SameBits(whole.weight.view(), r, alone.weight.view()));
    }
  }
}

// [rows, top_k] of seeded ids; about one in eight dropped.
Tensor RandomChoices(int64_t rows, int64_t top_k, int64_t experts, uint32_t seed) {
  Tensor out(DType::kI32, {rows, top_k});
  std::mt19937 generator(seed);
  for (int64_t i = 0; i < rows * top_k; ++i) {
    out.view().data<int32_t>()[i] = generator() % 8 == 0 ? -1 : static_cast<int32_t>(generator() % experts);
  }
  return out;
}

// Rows by expert, within one by entry: entry for entry what the device must find.
void ExpectStableOrder(const Tensor& topk_idx, int64_t experts, const std::string& where) {
  const int64_t rows = topk_idx.dim(0), top_k = topk_idx.dim(1), n = rows * top_k;
  std::vector<int32_t> want_offsets, want_token, want_slot_row(n, -1);
  for (int64_t e = 0; e < experts; ++e) {
    want_offsets.push_back(static_cast<int32_t>(want_token.size()));
    for (int64_t i = 0; i < n; ++i) {
      if (topk_idx.view().data<int32_t>()[i] != e) continue;
      want_slot_row[i] = static_cast<int32_t>(want_token.size());
      want_token.push_back(static_cast<int32_t>(i / top_k));
    }
  }
  want_offsets.push_back(static_cast<int32_t>(want_token.size()));

  const CudaCallForTest call;
  const DeviceMatrix choices(topk_idx.view());
  const DeviceArray<int32_t> offsets(experts + 1), token(n), slot_row(n);
  const ExpertOrderArgs args = {.topk_idx = static_cast<const int32_t*>(choices.get()),
                                .rows = rows,
                                .top_k = top_k,
                                .experts = experts,
                                .offsets = offsets.get(),
                                .token = token.get(),
                                .slot_row = slot_row.get()};
  ASSERT_EQ(cuda::ExpertOrder(call.get(), args), 0) << where;
  EXPECT_EQ(offsets.Download(), want_offsets) << where;
  EXPECT_EQ(slot_row.Download(), want_slot_row) << where;
  want_token.resize(n, static_cast<int32_t>(0xA5A5A5A5));  // behind the last row nothing is written
  EXPECT_EQ(token.Download(), want_token) << where;
}

class ExpertOrderKernelTest : public GpuTest {};
class CountExpertsKernelTest : public GpuTest {};

TEST_F(ExpertOrderKernelTest, OneLaunch) {
  for (int64_t rows : {0, 1, 5, 100}) ExpectStableOrder(RandomChoices(rows, 8, 20, 5), 20, std::to_string(rows));
  ExpectStableOrder(RandomChoices(70, 4, 1024, 6), 1024, "many experts");
  ExpectStableOrder(RandomChoices(512, 8, 3, 7), 3, "4096 entries");
  Tensor one(DType::kI32, {90, 2}), none(DType::kI32, {90, 2});
  std::fill_n(one.view().data<int32_t>(), 180, 5);
  std::fill_n(none.view().data<int32_t>(), 180, -1);
  ExpectStableOrder(one, 9, "one expert takes all");
  ExpectStableOrder(none, 9, "all dropped");
}

TEST_F(ExpertOrderKernelTest, SeveralChunks) {
  ExpectStableOrder(RandomChoices(4097, 1, 7, 8), 7, "one entry in the second chunk");
  ExpectStableOrder(RandomChoices(1700, 6, 600, 9), 600, "three chunks");
  Tensor one(DType::kI32, {1100, 4});
  std::fill_n(one.view().data<int32_t>(), 4400, 0);
  ExpectStableOrder(one, 2, "one expert takes all");
}

TEST_F(CountExpertsKernelTest, AddsToWhatIsThere) {
  const int64_t experts = 33;
  for (int64_t n : {0, 1, 5000}) {
    const Tensor choices = RandomChoices(n, 1, experts, 10);
    std::vector<int32_t> want(experts);
    std::iota(want.begin(), want.end(), 100);
    const DeviceArray<int32_t> counts(want);
    for (int64_t i = 0; i < n; ++i) {
      if (choices.view().data<int32_t>()[i] >= 0) ++want[choices.view().data<int32_t>()[i]];
    }
    const DeviceMatrix device_choices(choices.view());
    const CudaCallForTest call;
    const CountExpertsArgs args = {.topk_idx = static_cast<const int32_t*>(device_choices.get()),
                                   .n = n,
                                   .experts = experts,
                                   .counts = counts.get()};
    ASSERT_EQ(cuda::CountExperts(call.get(), args), 0);
    EXPECT_EQ(counts.Download(), want) << n;
  }
}

}  // namespace
}  // namespace switchyard::ops
