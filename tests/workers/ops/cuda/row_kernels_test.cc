// Kernels that take a row at a time (embedding, norms, rotation, combine, gather) against the CPU's kernels.
#include "tests/workers/ops/cuda/kernel_testing.h"

namespace switchyard::ops {
namespace {

class RowKernelsTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(DTypes, RowKernelsTest, testing::ValuesIn(kAllDTypes), KernelTestName);

TEST_P(RowKernelsTest, Embed) {
  for (int64_t width : {64, 67, 8}) {
    const Tensor table = RandomMatrix(dtype(), 12, width, 1);
    const std::vector<int32_t> tokens = {3, 0, 11, 3};
    Tensor want(acc(), {4, width});
    EmbedArgs args = {.dtype = code(),
                      .table = table.view().raw(),
                      .tokens = tokens.data(),
                      .residual = want.view().raw(),
                      .table_stride = width,
                      .residual_stride = width,
                      .width = width,
                      .accumulate = false};
    CpuKernels().embed(args, 0, 4);
    for (const MatrixLayout& layout : kLayouts) {
      const DeviceMatrix from = ToDevice(table.view(), layout);
      const DeviceMatrix to = PoisonOnDevice(acc(), 4, width, layout);
      const DeviceArray<int32_t> device_tokens(tokens);
      args.table = from.get(), args.tokens = device_tokens.get(), args.residual = to.get();
      args.table_stride = from.stride(), args.residual_stride = to.stride();
      ASSERT_EQ(cuda::Embed(call(), args, 4), 0);
      ExpectLikeCpu(to.Download().view(), want.view(), /*exact=*/true, layout.name);
    }
  }
}

TEST_P(RowKernelsTest, EmbedOfNoTokenIsZeros) {
  const Tensor table = RandomMatrix(dtype(), 2, 40, 2);
  const DeviceMatrix from(table.view()), to(acc(), 2, 40, 40);
  const DeviceArray<int32_t> tokens({-1, 1});
  const EmbedArgs args = {.dtype = code(),
                          .table = from.get(),
                          .tokens = tokens.get(),
                          .residual = to.get(),
                          .table_stride = 40,
                          .residual_stride = 40,
                          .width = 40,
                          .accumulate = false};
  ASSERT_EQ(cuda::Embed(call(), args, 2), 0);
  const Tensor got = to.Download();
  EXPECT_EQ(RowOf(got.view(), 0), std::vector<double>(40, 0.0));
  EXPECT_EQ(RowOf(got.view(), 1), RowOf(table.view(), 1));
}

// In 16 bits only few elements may differ from the CPU's, as only the order of the sum differs.
void ExpectNearlyAllTheSame(const TensorView& actual, const TensorView& cpu) {
  int64_t others = 0;
  for (int64_t r = 0; r < cpu.dim(0); ++r) {
    for (int64_t c = 0; c < cpu.dim(1); ++c) others += Get(actual, r, c) != Get(cpu, r, c);
  }
  EXPECT_LE(others, cpu.NumElements() / 100 + 1);
}

struct NormShape {
  int64_t rows, groups, width;
};

// One norm a row (several widths: a warp, a part of a block's threads, more than they hold) and one a head.
TEST_P(RowKernelsTest, RmsNorm) {
  for (const NormShape& s : {NormShape{3, 1, 96}, NormShape{2, 1, 1000}, NormShape{1, 1, 17000}, NormShape{0, 1, 64},
                             NormShape{3, 5, 64}, NormShape{2, 3, 37}}) {
    const int64_t row = s.groups * s.width;
    for (DType x_dtype : {dtype(), acc()}) {
      const Tensor x = RandomMatrix(x_dtype, s.rows, row, 3, 2.0), gamma = RandomMatrix(dtype(), 1, s.width, 4);
      Tensor want(dtype(), {s.rows, row});
      RmsNormArgs args = {.x_dtype = static_cast<uint8_t>(x_dtype),
                          .dtype = code(),
                          .x = x.view().raw(),
                          .gamma = gamma.view().raw(),
                          .y = want.view().raw(),
                          .x_stride = row,
                          .y_stride = row,
                          .groups = s.groups,
                          .width = s.width,
                          .eps = 1e-6};
      CpuKernels().rms_norm(args, 0, s.rows);
      for (const MatrixLayout& layout : kLayouts) {
        const DeviceMatrix from = ToDevice(x.view(), layout), scale(gamma.view());
        const DeviceMatrix to = PoisonOnDevice(dtype(), s.rows, row, layout);
        args.x = from.get(), args.gamma = scale.get(), args.y = to.get();
        args.x_stride = from.stride(), args.y_stride = to.stride();
        ASSERT_EQ(cuda::RmsNorm(call(), args, s.rows), 0);
        const Tensor got = to.Download();
        ExpectLikeCpu(got.view(), want.view(), /*exact=*/false, layout.name);
        if (DTypeBytes(dtype()) == 2) ExpectNearlyAllTheSame(got.view(), want.view());
      }
    }
  }
}

TEST_P(RowKernelsTest, RmsNormRoundsOnceWhereAsked) {
  const int64_t width = 64;
  const Tensor x = RandomMatrix(acc(), 1, width, 7), gamma = RandomMatrix(dtype(), 1, width, 8);
  const DeviceMatrix from(x.view()), scale(gamma.view());
  const auto norm = [&](bool on_device, bool rounds_once) {
    Tensor y(dtype(), {1, width});
    const DeviceMatrix to(dtype(), 1, width, width);
    const RmsNormArgs args = {.x_dtype = static_cast<uint8_t>(acc()),
                              .dtype = code(),
                              .x = on_device ? from.get() : x.view().raw(),
                              .gamma = on_device ? scale.get() : gamma.view().raw(),
                              .y = on_device ? to.get() : y.view().raw(),
                              .x_stride = width,
                              .y_stride = width,
                              .groups = 1,
                              .width = width,
                              .eps = 1e-6,
                              .rounds_once = rounds_once};
    if (!on_device) {
      CpuKernels().rms_norm(args, 0, 1);
      return y;
    }
    EXPECT_EQ(cuda::RmsNorm(call(), args, 1), 0);
    return to.Download();
  };
  const Tensor once = norm(true, true), twice = norm(true, false);
  ExpectNearlyAllTheSame(once.view(), norm(false, true).view());
  ExpectNearlyAllTheSame(twice.view(), norm(false, false).view());
  int64_t others = 0;
  for (int64_t c = 0; c < width; ++c) others += Get(once, 0, c) != Get(twice, 0, c);
  EXPECT_EQ(others > 0, DTypeBytes(dtype()) == 2) << "the first rounding shows where the model's dtype is narrow";
}

// In place, in any layout, alone or among others: the same bits.
TEST_P(RowKernelsTest, RmsNormOfARowIsTheSameAnywhere) {
  const int64_t rows = 5, groups = 2, width = 72, row = groups * width;
  const Tensor x = RandomMatrix(dtype(), rows, row, 5), gamma = RandomMatrix(dtype(), 1, width, 6);
  const DeviceMatrix scale(gamma.view());
  Tensor whole(dtype(), {rows, row});
  for (const MatrixLayout& layout : kLayouts) {
    const DeviceMatrix in_place = ToDevice(x.view(), layout);
    RmsNormArgs args = {.x_dtype = code(),
                        .dtype = code(),
                        .x = in_place.get(),
                        .gamma = scale.get(),
                        .y = in_place.get(),
                        .x_stride = in_place.stride(),
                        .y_stride = in_place.stride(),
                        .groups = groups,
                        .width = width,
                        .eps = 1e-5};
    ASSERT_EQ(cuda::RmsNorm(call(), args, rows), 0);
    if (layout.pad == 0) {
      whole = in_place.Download();
    } else {
      EXPECT_TRUE(SameBits(in_place.Download().view(), 0, whole.view())) << layout.name;
    }
    const DeviceMatrix alone = ToDevice(x.view().Rows(3, 1), layout), to(dtype(), 1, row, row);
    args.x = alone.get(), args.y = to.get(), args.x_stride = alone.stride(), args.y_stride = row;
    ASSERT_EQ(cuda::RmsNorm(call(), args, 1), 0);
    EXPECT_TRUE(SameBits(whole.view(), 3, to.Download().view())) << layout.name;
  }
}

TEST_P(RowKernelsTest, Rope) {
  const int64_t rows = 4, heads = 3, table_rows = 9;
  struct Shape {
    int64_t head_dim, half;
  };
  for (const Shape& s : {Shape{32, 16}, Shape{32, 8}, Shape{18, 9}}) {
    const Tensor x = RandomMatrix(dtype(), rows, heads * s.head_dim, 7);
    const Tensor cos = RandomMatrix(acc(), table_rows, s.half, 8), sin = RandomMatrix(acc(), table_rows, s.half, 9);
    const std::vector<int32_t> row_of = {8, 0, 3, 3};
    Tensor want = Copy(x.view());
    RopeArgs args = {.dtype = code(),
                     .cos = cos.view().raw(),
                     .sin = sin.view().raw(),
                     .table_rows = row_of.data(),
                     .x = want.view().raw(),
                     .x_stride = heads * s.head_dim,
                     .heads = heads,
                     .head_dim = s.head_dim,
                     .half = s.half};
    CpuKernels().rope(args, 0, rows);
    for (const MatrixLayout& layout : kLayouts) {
      const DeviceMatrix c(cos.view()), d(sin.view()), in_place = ToDevice(x.view(), layout);
      const DeviceArray<int32_t> device_rows(row_of);
      args.cos = c.get(), args.sin = d.get(), args.table_rows = device_rows.get();
      args.x = in_place.get(), args.x_stride = in_place.stride();
      ASSERT_EQ(cuda::Rope(call(), args, rows), 0);
      ExpectLikeCpu(in_place.Download().view(), want.view(), /*exact=*/true, layout.name);
    }
  }
}

struct CombineCase {
  const char* name;
  bool shared, gate;
  std::vector<int32_t> slots;  // [3, 5]
};

TEST_P(RowKernelsTest, Combine) {
  const std::vector<CombineCase> cases = {
      {"experts", false, false, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3, 0}},
      {"shared", true, false, {3, -1, 2, 1, 0, -1, -1, 4, -1, 8, 9, 7, 5, 11, -1}},
      {"gated", true, true, {3, -1, 2, 1, 0, -1, -1, 4, -1, 8, 9, 7, 5, 11, -1}},
      {"all dropped", false, false, std::vector<int32_t>(15, -1)},
      {"all dropped but the shared expert", true, true, std::vector<int32_t>(15, -1)},
  };
  const int64_t rows = 3, top_k = 5;
  for (int64_t width : {48, 21}) {
    const Tensor y = RandomMatrix(dtype(), 12, width, 10), weight = RandomMatrix(acc(), rows, top_k, 11);
    const Tensor shared = RandomMatrix(dtype(), rows, width, 12), gate = RandomMatrix(acc(), rows, 1, 13);
    const Tensor residual = RandomMatrix(acc(), rows, width, 14);
    for (const CombineCase& c : cases) {
      Tensor want = Copy(residual.view());
      CombineArgs args = {.dtype = code(),
                          .y = y.view().raw(),
                          .slot_row = c.slots.data(),
                          .weight = weight.view().raw(),
                          .shared = c.shared ? shared.view().raw() : nullptr,
                          .shared_gate = c.gate ? gate.view().raw() : nullptr,
                          .residual = want.view().raw(),
                          .y_stride = width,
                          .weight_stride = top_k,
                          .shared_stride = width,
                          .gate_stride = 1,
                          .residual_stride = width,
                          .top_k = top_k,
                          .width = width};
      CpuKernels().combine(args, 0, rows);
      for (const MatrixLayout& layout : kLayouts) {
        const DeviceMatrix dy = ToDevice(y.view(), layout), dw = ToDevice(weight.view(), layout);
        const DeviceMatrix ds = ToDevice(shared.view(), layout), dg = ToDevice(gate.view(), layout);
        const DeviceMatrix to = ToDevice(residual.view(), layout);
        const DeviceArray<int32_t> slots(c.slots);
        args.y = dy.get(), args.slot_row = slots.get(), args.weight = dw.get(), args.residual = to.get();
        args.shared = c.shared ? ds.get() : nullptr, args.shared_gate = c.gate ? dg.get() : nullptr;
        args.y_stride = dy.stride(), args.weight_stride = dw.stride(), args.shared_stride = ds.stride();
        args.gate_stride = dg.stride(), args.residual_stride = to.stride();
        ASSERT_EQ(cuda::Combine(call(), args, rows), 0);
        ExpectLikeCpu(to.Download().view(), want.view(), /*exact=*/!c.gate || dtype() != DType::kF64,
                      std::string(c.name) + ", " + layout.name);
      }
    }
  }
}

TEST_P(RowKernelsTest, Gather) {
  const std::vector<int32_t> rows = {4, 0, -1, 4, 2};
  const int64_t count = static_cast<int64_t>(rows.size()), bytes = DTypeBytes(dtype());
  for (int64_t width : {32, 33, 1}) {
    const Tensor x = RandomMatrix(dtype(), 5, width, 15);
    for (const MatrixLayout& layout : kLayouts) {
      const DeviceMatrix from = ToDevice(x.view(), layout), to = PoisonOnDevice(dtype(), count, width, layout);
      const DeviceArray<int32_t> device_rows(rows);
      const GatherArgs args = {.x = from.get(),
                               .rows = device_rows.get(),
                               .y = to.get(),
                               .count = count,
                               .row_bytes = width * bytes,
                               .x_stride_bytes = from.stride() * bytes,
                               .y_stride_bytes = to.stride() * bytes,
                               .keep_absent = false};
      ASSERT_EQ(cuda::Gather(call(), args), 0);
      const Tensor got = to.Download();
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(RowOf(got.view(), i), rows[i] < 0 ? std::vector<double>(width, 0.0) : RowOf(x.view(), rows[i]))
            << layout.name << " row " << i;
      }
    }
  }
}

}  // namespace
}  // namespace switchyard::ops
