// The CUDA kernel for weights of few bits against double precision: every format, every tile, weights as they are
// packed on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/gpu/gpu_test.h"
#include "tests/reference/gemm.h"
#include "tests/workers/ops/cuda/gemm_cuda_testing.h"
#include "workers/ops/gemm/weight.h"

namespace switchyard::ops {
namespace {

using test::DeviceCopy;
using test::HostMatrix;
using test::TestCall;

constexpr WeightFormat kFormats[] = {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kQ8_0,
                                     WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kMxfp4,
                                     WeightFormat::kQ6_K};

struct Case {
  WeightFormat format = WeightFormat::kInt4;
  DType dtype = DType::kBf16, y_dtype = DType::kBf16;
  std::vector<int64_t> expert_rows = {};
  int64_t n = 0, k = 0;
  bool gated = false, gather = false, bias = false, accumulate = false;
  double limit = 0;
  int64_t x_stride_extra = 0;
  uint32_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << WeightFormatName(c.format) << " " << DTypeName(c.dtype) << " to " << DTypeName(c.y_dtype) << ", rows";
  for (const int64_t rows : c.expert_rows) out << " " << rows;
  return out << ", n " << c.n << ", k " << c.k << (c.gated ? ", gated" : "") << (c.gather ? ", gather" : "")
             << (c.bias ? ", bias" : "") << (c.accumulate ? ", accumulate" : "") << ", limit " << c.limit;
}

// A weight's bytes on the device, and its values.
class BitsWeight {
 public:
  BitsWeight(const Case& c, uint32_t seed) : values_(DType::kF32, {c.n, c.k}), bias_(c.dtype, 1, c.n, c.n) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t i = 0; i < c.n * c.k; ++i) values_.data<float>()[i] = uniform(rng) * (i / 32 % 5 == 3 ? 8.0F : 1.0F);
    Weight packed({.n = c.n,
                   .k = c.k,
                   .dtype = DType::kF32,
                   .layout = c.gated ? WeightLayout::kGatedPanels : WeightLayout::kPanels,
                   .format = c.format});
    SY_CHECK_OK(packed.PackRows(0, values_));
    SY_CHECK_OK(packed.UnpackRows(0, values_));
    bias_.FillRandom(seed + 1);
    std::vector<uint8_t> bytes(static_cast<size_t>(packed.bytes()));
    std::memcpy(bytes.data(), packed.data(), bytes.size());
    bias_offset_ = packed.bytes();
    bytes.insert(bytes.end(), bias_.bytes.begin(), bias_.bytes.end());
    memory_ = std::make_unique<DeviceCopy>(bytes);
  }

  const void* at() const { return memory_->at(); }
  int64_t bias_offset() const { return bias_offset_; }
  double Value(int64_t row, int64_t k) const { return values_.view().row<float>(row)[k]; }
  double Bias(int64_t row) const { return bias_.Get(0, row); }

 private:
  Tensor values_;
  HostMatrix bias_;
  int64_t bias_offset_ = 0;
  std::unique_ptr<DeviceCopy> memory_;
};

class BitsProduct {
 public:
  explicit BitsProduct(const Case& c) : case_(c), columns_(c.gated ? c.n / 2 : c.n) {
    offsets_.push_back(0);
    for (const int64_t rows : c.expert_rows) offsets_.push_back(offsets_.back() + static_cast<int32_t>(rows));
    rows_ = offsets_.back();
    x_ = HostMatrix(c.dtype, c.gather ? rows_ / 2 + 1 : rows_, c.k, c.k + c.x_stride_extra);
    x_.FillRandom(c.seed);
    std::mt19937 rng(c.seed + 1);
    for (int64_t i = 0; i < rows_; ++i) {
      x_rows_.push_back(static_cast<int32_t>(c.gather ? rng() % static_cast<uint32_t>(x_.rows) : i));
    }
    std::vector<const void*> pointers;
    for (size_t e = 0; e < c.expert_rows.size(); ++e) {
      weights_.push_back(std::make_unique<BitsWeight>(c, c.seed + 10 * static_cast<uint32_t>(e + 1)));
      pointers.push_back(weights_.back()->at());
    }
    device_x_ = std::make_unique<DeviceCopy>(x_.bytes);
    device_x_rows_ = std::make_unique<DeviceCopy>(x_rows_);
    device_offsets_ = std::make_unique<DeviceCopy>(offsets_);
    device_pointers_ = std::make_unique<DeviceCopy>(pointers);
    ResetY();
  }

  void ResetY() {
    y_ = HostMatrix(case_.y_dtype, rows_ + 2, columns_, columns_ + 8);
    if (case_.accumulate) y_.FillRandom(case_.seed + 3);
    before_ = y_;
    device_y_ = std::make_unique<DeviceCopy>(y_.bytes);
  }

  CudaGemmArgs Args() const {
    const bool dense = case_.expert_rows.size() == 1;
    return {.dtype = static_cast<uint8_t>(case_.dtype),
            .y_dtype = static_cast<uint8_t>(case_.y_dtype),
            .x = device_x_->at(),
            .x_rows = case_.gather ? device_x_rows_->at<int32_t>() : nullptr,
            .weights = dense ? nullptr : device_pointers_->at<const void*>(),
            .weight = dense ? weights_[0]->at() : nullptr,
            .format = static_cast<uint8_t>(case_.format),
            .offsets = dense ? nullptr : device_offsets_->at<int32_t>(),
            .bias = nullptr,
            .y = device_y_->at(),
            .rows = dense ? rows_ : rows_ + 2,
            .n = case_.n,
            .k = case_.k,
            .x_stride = x_.stride,
            .w_stride = 0,
            .y_stride = y_.stride,
            .experts = static_cast<int32_t>(weights_.size()),
            .accumulate = case_.accumulate,
            .gated = case_.gated,
            .own_bias = case_.bias ? weights_[0]->bias_offset() : 0,
            .glu_alpha = 1.702,
            .glu_limit = case_.limit};
  }

  // Rows' bits.
  std::vector<std::vector<uint8_t>> Fetch() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << case_;
    device_y_->Fetch(y_.bytes.data());
    std::vector<std::vector<uint8_t>> rows;
    for (int64_t i = 0; i < rows_; ++i) rows.emplace_back(y_.Row(i), y_.Row(i) + y_.RowBytes());
    return rows;
  }

  void Check() {
    Fetch();
    if (!case_.accumulate) {
      ASSERT_EQ(y_.FirstBreach(rows_), -1) << case_ << ": something was written outside of y";
    }
    for (size_t e = 0; e < weights_.size(); ++e) {
      for (int64_t i = offsets_[e]; i < offsets_[e + 1]; ++i) {
        for (int64_t j = 0; j < columns_ && !testing::Test::HasFailure(); ++j) CheckElement(i, j, *weights_[e]);
      }
    }
  }

 private:
  // The sum of a weight's row, with its bias, and what rounding in fp32 may change.
  std::pair<double, double> Dot(int64_t row, int64_t w_row, const BitsWeight& w) const {
    double sum = case_.bias ? w.Bias(w_row) : 0, magnitude = std::fabs(sum);
    for (int64_t k = 0; k < case_.k; ++k) {
      const double product = x_.Get(x_rows_[row], k) * w.Value(w_row, k);
      sum += product, magnitude += std::fabs(product);
    }
    // Of numbers and a least value apart, which may be larger than the weight: 32 times.
    return {sum, 32 * std::sqrt(static_cast<double>(case_.k + 2)) * 0x1p-24 * magnitude};
  }

  void CheckElement(int64_t row, int64_t column, const BitsWeight& w) const {
    auto [want, error] = Dot(row, column, w);
    if (case_.gated) {
      auto [up, up_error] = Dot(row, column + columns_, w);
      double one = 0, alpha = 1;
      if (case_.limit > 0) {
        want = std::min(want, case_.limit), up = std::clamp(up, -case_.limit, case_.limit), one = 1, alpha = 1.702;
      }
      const double silu = want / (1 + std::exp(-alpha * want));
      error = 1.3 * error * std::fabs(up + one) + up_error * (std::fabs(silu) + error) +
              1e-6 * std::fabs(silu * (up + one));
      want = silu * (up + one);
    }
    if (case_.accumulate) want += before_.Get(row, column);
    error += (case_.y_dtype == DType::kF32   ? 0x1p-22
              : case_.y_dtype == DType::kF16 ? 0x1p-10
                                             : 0x1p-7) *
             (std::fabs(want) + 1e-4);
    const double got = y_.Get(row, column);
    if (!(std::fabs(got - want) <= error)) {
      ADD_FAILURE() << case_ << ": y[" << row << "][" << column << "] is " << got << ", not " << want << " +- "
                    << error;
    }
  }

  const Case case_;
  const int64_t columns_;
  int64_t rows_ = 0;
  HostMatrix x_, y_, before_;
  std::vector<int32_t> x_rows_, offsets_;
  std::vector<std::unique_ptr<BitsWeight>> weights_;
  std::unique_ptr<DeviceCopy> device_x_, device_y_, device_x_rows_, device_offsets_, device_pointers_;
};

class FewBitsGemmTest : public testing::TestWithParam<std::tuple<WeightFormat, DType>> {
 protected:
  void SetUp() override { SkipWithoutGpu(); }
  Case Base() const {
    return {.format = std::get<0>(GetParam()), .dtype = std::get<1>(GetParam()), .y_dtype = std::get<1>(GetParam())};
  }
};

TEST_P(FewBitsGemmTest, EveryTileIsTheFormula) {
  Case plain = Base(), gated = Base(), deep = Base();
  plain.expert_rows = {0, 7, 0, 140, 1}, plain.n = 150, plain.k = 72;
  gated.expert_rows = {9, 0, 33}, gated.n = 180, gated.k = 40, gated.gated = gated.gather = true;
  deep.expert_rows = {11}, deep.n = 17, deep.k = 2600, deep.y_dtype = DType::kF32;  // around all stages, and again
  for (const Case& c : {plain, gated, deep}) {
    BitsProduct product(c);
    for (int tile = 0; tile < kNumCudaBitsTiles; ++tile) {
      for (const int64_t grid : {1, 5}) {
        product.ResetY();
        ASSERT_EQ(cuda::LaunchBits(TestCall(false), cuda::ProblemOf(product.Args()), {.tile = tile, .grid = grid}), 0);
        product.Check();
        ASSERT_FALSE(HasFailure()) << kCudaBitsTiles[tile].name << " on " << grid << " CTAs";
      }
    }
  }
}

TEST_P(FewBitsGemmTest, DenseAndGroupedByTheTable) {
  Case dense = Base(), grouped = Base();
  dense.expert_rows = {3}, dense.n = 96, dense.k = 64, dense.y_dtype = DType::kF32, dense.accumulate = true;
  grouped.expert_rows = {2, 0, 5}, grouped.n = 64, grouped.k = 96, grouped.gated = true;
  BitsProduct one(dense), many(grouped);
  ASSERT_EQ(cuda::DenseGemm(TestCall(false), one.Args()), 0);
  one.Check();
  ASSERT_EQ(cuda::GroupedGemm(TestCall(false), many.Args()), 0);
  many.Check();
}

TEST_P(FewBitsGemmTest, BiasesBoundsAndAnyK) {
  for (const int64_t k : {40, 33, 7}) {
    Case c = Base();
    c.expert_rows = {3, 20}, c.n = 70, c.k = k, c.bias = true, c.x_stride_extra = 5;
    BitsProduct plain(c);
    ASSERT_EQ(cuda::GroupedGemm(TestCall(false), plain.Args()), 0);
    plain.Check();
    c.gated = true, c.limit = 0.75;
    BitsProduct gated(c);
    ASSERT_EQ(cuda::GroupedGemm(TestCall(false), gated.Args()), 0);
    gated.Check();
  }
}

TEST_P(FewBitsGemmTest, BitsOfARowDependOnNoOtherAndNoTile) {
  Case c = Base();
  c.expert_rows = {3, 0, 140, 12}, c.n = 144, c.k = 328, c.gated = true;
  BitsProduct product(c);
  ASSERT_EQ(cuda::GroupedGemm(TestCall(true), product.Args()), 0);
  const auto want = product.Fetch();
  for (int tile = 0; tile < kNumCudaBitsTiles; ++tile) {
    if (kCudaBitsTiles[tile].warps_k > 1) continue;
    product.ResetY();
    ASSERT_EQ(cuda::LaunchBits(TestCall(true), cuda::ProblemOf(product.Args()), {.tile = tile, .grid = 7}), 0);
    ASSERT_TRUE(product.Fetch() == want) << kCudaBitsTiles[tile].name;
  }
  c.expert_rows = {1};  // the same seeds: the same first row, and its expert's weight
  BitsProduct alone(c);
  ASSERT_EQ(cuda::DenseGemm(TestCall(true), alone.Args()), 0);
  EXPECT_TRUE(alone.Fetch()[0] == want[0]);
}

std::string CaseName(const testing::TestParamInfo<std::tuple<WeightFormat, DType>>& param) {
  return absl::StrCat(WeightFormatName(std::get<0>(param.param)), "_", DTypeName(std::get<1>(param.param)));
}
INSTANTIATE_TEST_SUITE_P(Formats, FewBitsGemmTest,
                         testing::Combine(testing::ValuesIn(kFormats), testing::Values(DType::kBf16, DType::kF16)),
                         CaseName);

}  // namespace
}  // namespace switchyard::ops
