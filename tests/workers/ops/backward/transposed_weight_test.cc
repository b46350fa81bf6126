#include "workers/ops/gemm/backward/transposed_weight.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/kernels/find_gemm_kernel.h"

namespace switchyard::ops {
namespace {

Tensor Transposed(const TensorView& x) {
  Tensor t(x.dtype(), {x.dim(1), x.dim(0)});
  for (int64_t i = 0; i < x.dim(0); ++i) {
    for (int64_t j = 0; j < x.dim(1); ++j) SetElement(t, j, i, GetElement(x, i, j));
  }
  return t;
}

class TransposedWeightTest : public testing::TestWithParam<std::pair<DType, DType>> {
 protected:
  ThreadPool pool_{3, /*spin=*/false};
  Stream stream_ = Stream::OnCpu(&pool_);
};

// Every byte is that of the transpose packed the other way; what was in the memory before does not matter.
TEST_P(TransposedWeightTest, IsTheTransposePacked) {
  const auto [from, to] = GetParam();
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {2, 33}, {31, 70}, {97, 64}, {513, 40}, {1100, 17}}) {
    const Tensor rows = RandomMatrix(from, n, k + 3, 1);
    const TensorView part = rows.view().Columns(2, k);
    const WeightDesc desc = {.n = k, .k = n, .dtype = to};
    Weight w(desc);
    std::fill_n(static_cast<char*>(w.mutable_data()), w.bytes(), char{0x5a});
    ASSERT_TRUE(PackTransposed(stream_, part, &w).ok());
    const absl::StatusOr<Weight> want = PackWeight(stream_, desc, Transposed(part));
    ASSERT_TRUE(want.ok());
    ASSERT_EQ(w.bytes(), want->bytes());
    ASSERT_EQ(std::memcmp(w.data(), want->data(), w.bytes()), 0) << n << " x " << k;
  }
}

TEST_P(TransposedWeightTest, MisfitsAreNamed) {
  const auto [from, to] = GetParam();
  const Tensor rows = RandomMatrix(from, 4, 6, 1);
  Weight fits({.n = 6, .k = 4, .dtype = to}), wrong({.n = 4, .k = 6, .dtype = to}), empty;
  Weight gated({.n = 6, .k = 4, .dtype = to, .layout = WeightLayout::kGatedPanels});
  EXPECT_TRUE(PackTransposed(stream_, rows, &fits).ok());
  for (Weight* w : {&wrong, &empty, &gated}) {
    const absl::Status status = PackTransposed(stream_, rows, w);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("must be plain [6, 4]"));
  }
  const Tensor ints(DType::kI32, {4, 6});
  EXPECT_EQ(PackTransposed(stream_, ints, &fits).code(), absl::StatusCode::kInvalidArgument);
}

std::vector<std::pair<DType, DType>> Conversions() {
  std::vector<std::pair<DType, DType>> all;
  for (DType from : {DType::kF32, DType::kF64, DType::kBf16, DType::kF16}) {
    for (DType to : {DType::kF32, DType::kF64, DType::kBf16, DType::kF16}) all.emplace_back(from, to);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(DTypes, TransposedWeightTest, testing::ValuesIn(Conversions()), [](const auto& i) {
  return absl::StrCat(DTypeName(i.param.first), "_to_", DTypeName(i.param.second));
});

// The two packers of columns that every kernel has, beside the ones that take rows.  Packing needs no tiles, so that of
// AMX is tested wherever there is AVX-512.
class PackColumnsTest : public testing::TestWithParam<GemmCase> {};

std::vector<char> Aligned(int64_t bytes) { return std::vector<char>(bytes + 64, char{0x5a}); }
char* At64(std::vector<char>* memory) {
  return memory->data() + (64 - reinterpret_cast<uintptr_t>(memory->data()) % 64) % 64;
}

void ExpectColumnsPackLikeRows(const GemmKernel& kernel, DType dtype) {
  for (int64_t columns = 1; columns <= kernel.max_rows; ++columns) {
    for (int64_t k : {1, 2, 31, 32, 33, 70}) {
      const Tensor x = RandomMatrix(dtype, k, columns + 5, 1);
      const TensorView part = x.view().Columns(3, columns);
      const Tensor turned = Transposed(part);
      const int64_t padded_k = (k + 31) / 32 * 32, bytes = columns * padded_k * kernel.a_bytes;
      std::vector<char> rows_memory = Aligned(bytes), columns_memory = Aligned(bytes);
      char *rows_block = At64(&rows_memory), *columns_block = At64(&columns_memory);
      kernel.pack({.x = turned.view().raw(),
                   .x_stride = k,
                   .row_idx = nullptr,
                   .rows = columns,
                   .k = k,
                   .padded_k = padded_k,
                   .a = rows_block});
      kernel.pack_columns({.x = part.raw(),
                           .x_stride = part.row_stride(),
                           .columns = columns,
                           .k = k,
                           .padded_k = padded_k,
                           .a = columns_block});
      ASSERT_EQ(std::memcmp(rows_block, columns_block, bytes), 0) << columns << " columns, k " << k;
      ASSERT_EQ(columns_block[bytes], 0x5a) << "wrote past the block";
    }
  }
}

TEST_P(PackColumnsTest, ColumnsArePackedLikeRows) {
  ExpectColumnsPackLikeRows(FindGemmKernel(GetParam().isa, GetParam().dtype), GetParam().dtype);
}

TEST(AmxPackColumnsTest, ColumnsArePackedLikeRows) {
  if (DetectedIsa() < Isa::kAvx512) GTEST_SKIP() << "needs AVX-512, here is " << IsaName(DetectedIsa());
  ExpectColumnsPackLikeRows(kAmxBf16GemmKernel, DType::kBf16);
}

TEST_P(PackColumnsTest, PanelsPickRows) {
  const auto [isa, dtype] = GetParam();
  const Tensor x = RandomMatrix(dtype, 9, 40, 1);
  const std::vector<int32_t> picked = {8, 0, 3, 3, 7};
  Tensor chosen(dtype, {5, 40});
  for (int64_t i = 0; i < 5; ++i) {
    std::memcpy(chosen.view().Rows(i, 1).raw(), x.view().Rows(picked[i], 1).raw(), 40 * DTypeBytes(dtype));
  }
  const auto pack = [&, isa = isa, dtype = dtype](const TensorView& from, const int32_t* rows, std::vector<char>* to) {
    *to = std::vector<char>(32 * 32 * DTypeBytes(dtype));
    FindGemmKernel(isa, dtype)
        .pack_panel({.x_dtype = static_cast<uint8_t>(dtype),
                     .dtype = static_cast<uint8_t>(dtype),
                     .x = from.Columns(4, 1).raw(),
                     .x_stride = 40,
                     .row_idx = rows,
                     .columns = 29,
                     .k = 5,
                     .padded_k = 32,
                     .panel = to->data()});
  };
  std::vector<char> gathered, copied;
  pack(x, picked.data(), &gathered);
  pack(chosen, nullptr, &copied);
  EXPECT_EQ(gathered, copied);
}

INSTANTIATE_TEST_SUITE_P(Kernels, PackColumnsTest, testing::ValuesIn(AllGemmCases()), CaseName);

}  // namespace
}  // namespace switchyard::ops
