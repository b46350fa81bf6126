// Weights of every format, with biases of their own and a bounded SwiGLU, on the test's device: products against double
// precision.
#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/grouped_gemm.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_backend.h"

namespace switchyard::ops {
namespace {

class DeviceWeightsTest : public testing::TestWithParam<std::tuple<WeightFormat, DType>> {
 protected:
  static void SetUpTestSuite() {
    const Device device = TestDevice();
    if (device.is_cpu() || RegisteredBackend(device.kind).NumDevices() > 0) stream_ = std::make_unique<TestStream>();
  }
  static void TearDownTestSuite() { stream_.reset(); }
  void SetUp() override {
    if (stream_ == nullptr) GTEST_SKIP() << "skipped: no GPU";
  }

  WeightFormat format() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  const Stream& stream() const { return stream_->get(); }

  // A weight on the device, and its values and bias, row by row.
  struct Placed {
    Weight weight;
    Tensor values, bias;
  };
  Placed Make(int64_t n, int64_t k, bool gated, uint32_t seed) const {
    const WeightDesc desc = {.n = n,
                             .k = k,
                             .dtype = dtype(),
                             .layout = gated ? WeightLayout::kGatedPanels : WeightLayout::kPanels,
                             .format = format(),
                             .bias = true};
    Tensor rows = RandomMatrix(dtype(), n, k, seed), bias = RandomMatrix(dtype(), n, 1, seed + 1);
    Weight host(desc), weight = *Weight::Allocate(desc, TestDevice());
    SY_CHECK_OK(host.PackRows(0, rows));
    WeightDesc exact = desc;
    exact.dtype = DType::kF32, exact.bias = false;
    Weight unpacked(exact);
    SY_CHECK_OK(unpacked.PackRows(0, rows));
    Tensor values(DType::kF32, {n, k});
    SY_CHECK_OK(unpacked.UnpackRows(0, values));
    const std::unique_ptr<DeviceWriter> writer = *DeviceWriter::Create(TestDevice());
    if (writer == nullptr || format() == WeightFormat::kPlain) {
      SY_CHECK_OK(weight.PackRows(0, rows, writer.get()));
    } else {
      SY_CHECK_OK(CopyPanels(host, &weight, writer.get()));
    }
    SY_CHECK_OK(weight.PackBias(0, bias, writer.get()));
    if (writer != nullptr) SY_CHECK_OK(writer->Finish());
    return {std::move(weight), std::move(values), std::move(bias)};
  }

  // Row `row` of the weight times x's, with the bias; and what rounding may change.
  std::pair<double, double> Dot(const TensorView& x, int64_t i, const Placed& w, int64_t row) const {
    double sum = GetElement(w.bias, row, 0), magnitude = std::fabs(sum);
    for (int64_t k = 0; k < x.dim(1); ++k) {
      const double product = GetElement(x, i, k) * GetElement(w.values, row, k);
      sum += product, magnitude += std::fabs(product);
    }
    // The CPU has x of 8 bits with weights of few.
    const bool rounds_x = TestDevice().is_cpu() && format() != WeightFormat::kPlain;
    return {sum, (rounds_x ? 1.0 / 100 : 0x1p-18) * magnitude};
  }

  void ExpectClose(double got, double want, double error) const {
    ASSERT_NEAR(got, want, error + 2 * Epsilon(dtype()) * std::fabs(want) + 1e-6);
  }

  static inline std::unique_ptr<TestStream> stream_;
};

TEST_P(DeviceWeightsTest, ProductsAddBiases) {
  const int64_t m = 3, n = 70, k = 96;
  const Placed w = Make(n, k, false, 1);
  const Tensor x = RandomMatrix(dtype(), m, k, 2), zeros = Tensor::Zeros(DType::kF32, {m, n});
  const Tensor x_there = *CopyToDevice(stream(), x), y_there = *CopyToDevice(stream(), zeros);
  ASSERT_TRUE(Gemm(stream(), {}, x_there, w.weight, TensorView(), y_there).ok());
  const Tensor y = *CopyToHost(stream(), y_there);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const auto [want, error] = Dot(x, i, w, j);
      ExpectClose(GetElement(y, i, j), want, error);
    }
  }
}

TEST_P(DeviceWeightsTest, ExpertsAddBiasesBeforeTheirActivation) {
  const std::vector<int32_t> offsets = {0, 2, 2, 7};
  const int64_t rows = 7, f = 45, k = 64;
  std::vector<Placed> placed;
  std::vector<const Weight*> weights;
  for (uint32_t e = 0; e < 3; ++e) placed.push_back(Make(2 * f, k, true, 10 + 3 * e));
  for (const Placed& w : placed) weights.push_back(&w.weight);
  const WeightTable table = *WeightTable::Make(stream(), weights);
  const Tensor x = RandomMatrix(dtype(), rows, k, 2), zeros = Tensor::Zeros(dtype(), {rows, f});
  Tensor ints(DType::kI32, {4});
  std::copy(offsets.begin(), offsets.end(), ints.data<int32_t>());
  const Tensor x_there = *CopyToDevice(stream(), x), offsets_there = *CopyToDevice(stream(), ints);
  for (const double limit : {0.0, 0.75}) {
    const Tensor hidden_there = *CopyToDevice(stream(), zeros);
    GroupedGemmDesc desc;
    desc.clamp = {.alpha = 1.702, .limit = limit};
    const absl::Status status =
        GroupedGatedGemm(stream(), desc, x_there, table.group(), IntView(offsets_there), hidden_there);
    ASSERT_TRUE(status.ok()) << status;
    const Tensor hidden = *CopyToHost(stream(), hidden_there);
    for (size_t e = 0; e < 3; ++e) {
      for (int64_t i = offsets[e]; i < offsets[e + 1]; ++i) {
        for (int64_t j = 0; j < f; ++j) {
          auto [gate, gate_error] = Dot(x, i, placed[e], j);
          auto [up, up_error] = Dot(x, i, placed[e], f + j);
          double alpha = 1, one = 0;
          if (limit > 0) alpha = 1.702, one = 1, gate = std::min(gate, limit), up = std::clamp(up, -limit, limit);
          const double silu = gate / (1 + std::exp(-alpha * gate));
          ExpectClose(GetElement(hidden, i, j), silu * (up + one),
                      1.3 * gate_error * (std::fabs(up + one) + up_error) + up_error * std::fabs(silu));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceWeightsTest,
                         testing::Combine(testing::Values(WeightFormat::kPlain, WeightFormat::kInt8,
                                                          WeightFormat::kInt4, WeightFormat::kQ8_0, WeightFormat::kQ4_0,
                                                          WeightFormat::kQ4_1, WeightFormat::kMxfp4,
                                                          WeightFormat::kQ6_K),
                                          testing::Values(DType::kBf16, DType::kF16)),
                         [](const auto& i) {
                           return absl::StrCat(WeightFormatName(std::get<0>(i.param)), "_",
                                               DTypeName(std::get<1>(i.param)));
                         });

}  // namespace
}  // namespace switchyard::ops
