// The ops that take a row at a time, on the test's device against double precision: every dtype, no row, one and
// several, rows side by side and rows of a wider matrix.
#include <algorithm>
#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/reference/row_ops.h"
#include "tests/workers/ops/op_test_util.h"
#include "workers/ops/activation/clamp.h"
#include "workers/ops/embedding/embedding.h"
#include "workers/ops/exchange/combine.h"
#include "workers/ops/exchange/permute.h"
#include "workers/ops/norm/rms_norm.h"
#include "workers/ops/rope/rope.h"
#include "workers/ops/router/router.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_backend.h"

namespace switchyard::ops {
namespace {

using reference::Vec;

struct RowsCase {
  DType dtype;
  int64_t rows;
  bool strided;
};

std::vector<RowsCase> RowsCases() {
  std::vector<RowsCase> cases;
  for (const DType dtype : kAllDTypes) {
    for (const int64_t rows : {0, 1, 7}) {
      for (const bool strided : {false, true}) cases.push_back({dtype, rows, strided});
    }
  }
  return cases;
}

// A matrix on the device, where the case wants it inside a wider one: neither first column nor stride are aligned.
struct Placed {
  Tensor memory;
  TensorView view;
};

class DeviceRowOpsTest : public testing::TestWithParam<RowsCase> {
 protected:
  // One for the suite: a queue's scratch takes longer to get than a test.
  static void SetUpTestSuite() {
    const Device device = TestDevice();
    if (device.is_cpu() || RegisteredBackend(device.kind).NumDevices() > 0) stream_ = std::make_unique<TestStream>();
  }
  static void TearDownTestSuite() { stream_.reset(); }
  void SetUp() override {
    if (stream_ == nullptr) GTEST_SKIP() << "skipped: no GPU";
  }

  DType dtype() const { return GetParam().dtype; }
  DType acc() const { return AccDType(GetParam().dtype); }
  int64_t rows() const { return GetParam().rows; }
  const Stream& stream() const { return stream_->get(); }

  Placed Place(const Tensor& values) const {
    constexpr int64_t kBefore = 3, kBehind = 2;
    const int64_t width = values.dim(1);
    if (!GetParam().strided) {
      Tensor there = *CopyToDevice(stream(), values);
      const TensorView view = there;
      return {.memory = std::move(there), .view = view};
    }
    const Tensor wide = RandomMatrix(values.dtype(), values.dim(0), kBefore + width + kBehind, 99);
    EXPECT_TRUE(CopyTensor(Stream::OnCpu(nullptr), values, wide.view().Columns(kBefore, width)).ok());
    Tensor there = *CopyToDevice(stream(), wide);
    const TensorView view = there.view().Columns(kBefore, width);
    return {.memory = std::move(there), .view = view};
  }
  Placed PlaceRandom(DType dtype, int64_t rows, int64_t width, uint32_t seed, double scale = 1.0) const {
    return Place(RandomMatrix(dtype, rows, width, seed, scale));
  }
  Tensor Ints(const std::vector<int32_t>& numbers, Shape shape) const {
    Tensor host(DType::kI32, shape);
    std::copy(numbers.begin(), numbers.end(), host.data<int32_t>());
    return *CopyToDevice(stream(), host);
  }
  std::vector<int32_t> IntsBack(const TensorView& there) const {
    const Tensor host = *CopyToHost(stream(), there);
    return {host.data<int32_t>(), host.data<int32_t>() + there.NumElements()};
  }
  Tensor Back(const TensorView& there) const { return *CopyToHost(stream(), there); }
  Tensor Back(const Placed& there) const { return Back(there.view); }

  static inline std::unique_ptr<TestStream> stream_;
};

INSTANTIATE_TEST_SUITE_P(Rows, DeviceRowOpsTest, testing::ValuesIn(RowsCases()), [](const auto& i) {
  return absl::StrCat(DTypeName(i.param.dtype), "_", i.param.rows, "rows", i.param.strided ? "_strided" : "");
});

TEST_P(DeviceRowOpsTest, Embed) {
  const Placed table = PlaceRandom(dtype(), 12, 37, 1), residual = PlaceRandom(acc(), rows(), 37, 2);
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < rows(); ++t) tokens.push_back(static_cast<int32_t>(t * 5 % 12));
  const Tensor ids = Ints(tokens, {rows()});
  ASSERT_TRUE(Embed(stream(), table.view, IntView(ids), residual.view).ok());
  const Tensor got = Back(residual), want = Back(table);
  for (int64_t t = 0; t < rows(); ++t) EXPECT_EQ(RowOf(got, t), RowOf(want, tokens[t])) << t;
}

TEST_P(DeviceRowOpsTest, RmsNormOfRowsAndOfHeads) {
  for (const int64_t head_dim : {0, 24}) {
    for (const DType x_dtype : {acc(), dtype()}) {
      const int64_t row = 72, width = head_dim > 0 ? head_dim : row;
      const Placed x = PlaceRandom(x_dtype, rows(), row, 3, 3.0), y = PlaceRandom(dtype(), rows(), row, 4);
      const Tensor gamma = RandomMatrix(dtype(), 1, width, 5);
      const Tensor there = *CopyToDevice(stream(), gamma);
      const RmsNormDesc desc = {.eps = 1e-5, .head_dim = head_dim};
      ASSERT_TRUE(RmsNorm(stream(), desc, x.view, there.view().Reshape({width}), y.view).ok());
      const Tensor before = Back(x), got = Back(y);
      for (int64_t t = 0; t < rows(); ++t) {
        for (int64_t first = 0; first < row; first += width) {
          const auto part = [&](const Tensor& all) { return RowOf(all.view().Columns(first, width), t); };
          ExpectNear(part(got), reference::RmsNorm(part(before), RowOf(gamma, 0), 1e-5),
                     reference::ElementwiseTolerance(dtype()), absl::StrCat("row ", t, " from ", first));
        }
      }
    }
  }
}

// Each element is gamma times what a gamma of ones gives in AccDType, rounded.
TEST_P(DeviceRowOpsTest, RmsNormThatRoundsOnce) {
  const int64_t width = 72;
  const Placed x = PlaceRandom(acc(), rows(), width, 3, 3.0), y = PlaceRandom(dtype(), rows(), width, 4);
  const Placed wide = PlaceRandom(acc(), rows(), width, 4);
  const Tensor gamma = RandomMatrix(dtype(), 1, width, 5), ones(acc(), {1, width});
  for (int64_t c = 0; c < width; ++c) Set(ones, 0, c, 1.0);
  const Tensor gammas = *CopyToDevice(stream(), gamma), wide_gammas = *CopyToDevice(stream(), ones);
  ASSERT_TRUE(RmsNorm(stream(), {.rounds_once = true}, x.view, gammas.view().Reshape({width}), y.view).ok());
  ASSERT_TRUE(RmsNorm(stream(), {}, x.view, wide_gammas.view().Reshape({width}), wide.view).ok());
  const Tensor got = Back(y), normed = Back(wide), want(dtype(), {1, width});
  int64_t others = 0;
  for (int64_t t = 0; t < rows(); ++t) {
    for (int64_t c = 0; c < width; ++c) {
      Set(want, 0, c, Get(gamma, 0, c) * Get(normed, t, c));
      others += Get(got, t, c) != Get(want, 0, c);
    }
  }
  EXPECT_LE(others, rows() * width / 30) << "sums of other orders may differ in the last bit";
}

TEST_P(DeviceRowOpsTest, Rope) {
  const int64_t head_dim = 40, heads = 3;
  for (const int64_t rotary : {24, 40}) {
    RopeTable table = *RopeTable::Build({.rotary_dim = rotary}, 64, acc());
    ASSERT_TRUE(table.MoveTo(stream()).ok());
    const Placed x = PlaceRandom(dtype(), rows(), heads * head_dim, 6);
    const Tensor before = Back(x);
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < rows(); ++t) positions.push_back(static_cast<int32_t>((63 + 17 * t) % 64));
    const Tensor places = Ints(positions, {rows()});
    ASSERT_TRUE(ApplyRope(stream(), table, head_dim, IntView(places), x.view).ok());
    const Tensor got = Back(x);
    const RopeFrequencies f = *ComputeRopeFrequencies({.rotary_dim = rotary}, acc());
    // fp32 angles are rounded (as in HF): 64 · 2^-24 of a turn at most.
    const double angles = acc() == DType::kF32 ? 4e-6 : 0.0;
    for (int64_t t = 0; t < rows(); ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const auto head = [&](const Tensor& all) { return RowOf(all.view().Columns(h * head_dim, head_dim), t); };
        ExpectNear(head(got), reference::Rope(head(before), f.inv_freq, 1.0, positions[t]),
                   {std::max(reference::ElementwiseTolerance(dtype()).relative, angles)}, absl::StrCat("row ", t));
      }
    }
  }
}

TEST_P(DeviceRowOpsTest, Clamp) {
  const Placed x = PlaceRandom(dtype(), rows(), 45, 10, 3.0);
  const Tensor before = Back(x);
  ASSERT_TRUE(Clamp(stream(), 2.0, x.view).ok());
  const Tensor got = Back(x);
  for (int64_t t = 0; t < rows(); ++t) {
    reference::Vec want = RowOf(before, t);
    for (double& value : want) value = std::clamp(value, -2.0, 2.0);
    EXPECT_EQ(RowOf(got, t), want) << t;
  }
}

TEST_P(DeviceRowOpsTest, RouteTopK) {
  const int64_t experts = 60, top_k = 6;
  const Placed logits = PlaceRandom(acc(), rows(), experts, 11, 2.0);
  const Tensor on_host = Back(logits);
  const Tensor bias = RandomMatrix(acc(), 1, experts, 13, 0.05), there = *CopyToDevice(stream(), bias);
  for (const auto& [renormalize, biased] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
    const Tensor idx = Ints({}, {rows(), top_k});
    const Placed weight = PlaceRandom(acc(), rows(), top_k, 12);
    const RouterDesc desc = {
        .top_k = top_k, .renormalize = renormalize, .bias = biased ? there.view().Reshape({experts}) : TensorView()};
    ASSERT_TRUE(RouteTopK(stream(), desc, logits.view, idx, weight.view).ok());
    const std::vector<int32_t> chosen = IntsBack(idx);
    const Tensor weights = Back(weight);
    for (int64_t t = 0; t < rows(); ++t) {
      const reference::Route want =
          reference::RouteTopK(RowOf(on_host, t), top_k, renormalize, biased ? RowOf(bias, 0) : reference::Vec());
      EXPECT_EQ(std::vector<int32_t>(chosen.begin() + t * top_k, chosen.begin() + (t + 1) * top_k), want.experts) << t;
      ExpectNear(RowOf(weights, t), want.weights, reference::ReductionTolerance(acc()), absl::StrCat("row ", t));
    }
  }
}

TEST_P(DeviceRowOpsTest, Combine) {
  const int64_t width = 43, top_k = 3, outputs = 9;
  const Placed y = PlaceRandom(dtype(), outputs, width, 13), shared = PlaceRandom(dtype(), rows(), width, 14);
  const Placed weight = PlaceRandom(acc(), rows(), top_k, 15), gate = PlaceRandom(acc(), rows(), 1, 16);
  std::vector<int32_t> slots;  // each fourth choice is dropped, all of row 5 are
  for (int32_t i = 0; i < rows() * top_k; ++i) slots.push_back(i % 4 == 3 || i / top_k == 5 ? -1 : i * 5 % outputs);
  const Tensor slot_row = Ints(slots, {rows() * top_k});
  for (const auto& [has_shared, weighted] : {std::pair{false, true}, {true, true}, {false, false}}) {
    const Placed residual = PlaceRandom(acc(), rows(), width, 17);
    const Tensor before = Back(residual), outs = Back(y), w = Back(weight), s = Back(shared), logit = Back(gate);
    CombineInputs inputs = {.y = y.view, .slot_row = IntView(slot_row)};
    if (weighted) inputs.weight = weight.view;
    if (has_shared) inputs.shared = shared.view, inputs.shared_gate = gate.view;
    ASSERT_TRUE(Combine(stream(), inputs, residual.view).ok());
    const Tensor got = Back(residual);
    for (int64_t t = 0; t < rows(); ++t) {
      reference::Vec want = RowOf(before, t);
      for (int64_t c = 0; c < width; ++c) {
        for (int64_t k = 0; k < top_k; ++k) {
          const int32_t slot = slots[t * top_k + k];
          if (slot >= 0) want[c] += (weighted ? Get(w, t, k) : 1.0) * Get(outs, slot, c);
        }
        if (has_shared) want[c] += reference::Sigmoid(Get(logit, t, 0)) * Get(s, t, c);
      }
      ExpectNear(RowOf(got, t), want, reference::ReductionTolerance(acc()), absl::StrCat("row ", t));
    }
  }
}

TEST_P(DeviceRowOpsTest, GatherRows) {
  const Placed x = PlaceRandom(dtype(), 5, 33, 18);
  const Placed y = PlaceRandom(dtype(), rows(), 33, 19);
  std::vector<int32_t> from;
  for (int64_t t = 0; t < rows(); ++t) from.push_back(static_cast<int32_t>(4 - t * 3 % 5));
  const Tensor there = Ints(from, {rows()});
  ASSERT_TRUE(GatherRows(stream(), x.view, IntView(there), y.view).ok());
  const Tensor got = Back(y), all = Back(x);
  for (int64_t t = 0; t < rows(); ++t) EXPECT_EQ(RowOf(got, t), RowOf(all, from[t])) << t;
}

TEST_P(DeviceRowOpsTest, RowsIgnoreOtherRows) {
  const Tensor a = RandomMatrix(dtype(), rows(), 48, 20, 2.0), b = RandomMatrix(dtype(), rows(), 48, 21);
  const Tensor weights = RandomMatrix(acc(), rows(), 1, 22), residual = RandomMatrix(acc(), rows(), 48, 23);
  RopeTable table = *RopeTable::Build({.rotary_dim = 16}, 64, acc());
  ASSERT_TRUE(table.MoveTo(stream()).ok());
  const auto part = [&](const Tensor& all, int64_t begin, int64_t count) {
    return Place(Copy(all.view().Rows(begin, count)));
  };
  using Run = std::function<absl::Status(const Placed& x, const Placed& other, int64_t begin, int64_t count)>;
  const auto expect_same = [&](const char* op, const Tensor& x, const Run& run) {
    const auto result = [&](int64_t begin, int64_t count) {
      const Placed there = part(x, begin, count), other = part(b, begin, count);
      EXPECT_TRUE(run(there, other, begin, count).ok()) << op;
      return Back(there);
    };
    const Tensor whole = result(0, rows());
    for (int64_t t = 0; t < rows(); ++t) EXPECT_TRUE(SameBits(whole, t, result(t, 1))) << op;
  };
  expect_same("clamp", a,
              [&](const Placed& x, const Placed&, int64_t, int64_t) { return Clamp(stream(), 1.5, x.view); });
  expect_same("rope", a, [&](const Placed& x, const Placed&, int64_t begin, int64_t count) {
    std::vector<int32_t> positions(count);
    for (int64_t i = 0; i < count; ++i) positions[i] = static_cast<int32_t>(9 * (begin + i));
    const Tensor places = Ints(positions, {count});
    return ApplyRope(stream(), table, 24, IntView(places), x.view);
  });
  expect_same("combine", residual, [&](const Placed& x, const Placed& y, int64_t begin, int64_t count) {
    std::vector<int32_t> slots(count);
    for (int64_t i = 0; i < count; ++i) slots[i] = static_cast<int32_t>(i);
    const Tensor slot_row = Ints(slots, {count});
    const Placed weight = part(weights, begin, count);
    return Combine(stream(), {.y = y.view, .slot_row = IntView(slot_row), .weight = weight.view}, x.view);
  });
}

}  // namespace
}  // namespace switchyard::ops
