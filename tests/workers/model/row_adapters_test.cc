// Products of adapters that rows choose: against naive double arithmetic, and that a row's bits are its own.
#include "workers/model/forward/row_adapters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::model {
namespace {

constexpr int64_t kInputs = 70, kOutputs = 45;

using Matrix = std::vector<std::vector<double>>;

Matrix Draw(int64_t rows, int64_t columns, std::mt19937* gen) {
  std::normal_distribution<double> normal;
  Matrix out(static_cast<size_t>(rows), std::vector<double>(static_cast<size_t>(columns)));
  for (auto& row : out) {
    for (double& value : row) value = normal(*gen);
  }
  return out;
}

Tensor Of(const Matrix& values, DType dtype) {
  Tensor out(dtype, {static_cast<int64_t>(values.size()), static_cast<int64_t>(values[0].size())});
  VisitDType(dtype, [&]<class Elem>() {
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t j = 0; j < values[i].size(); ++j)
        out.view().row<Elem>(static_cast<int64_t>(i))[j] = static_cast<Elem>(static_cast<Acc<Elem>>(values[i][j]));
    }
  });
  return out;
}

Matrix Values(const TensorView& from) {
  Matrix out(static_cast<size_t>(from.dim(0)), std::vector<double>(static_cast<size_t>(from.dim(1))));
  VisitDType(from.dtype(), [&]<class Elem>() {
    for (size_t i = 0; i < out.size(); ++i) {
      for (size_t j = 0; j < out[i].size(); ++j)
        out[i][j] = static_cast<double>(static_cast<Acc<Elem>>(from.row<Elem>(static_cast<int64_t>(i))[j]));
    }
  });
  return out;
}

std::string Bytes(const TensorView& row) {
  return {static_cast<const char*>(row.raw()), static_cast<size_t>(row.dim(1) * DTypeBytes(row.dtype()))};
}

class RowAdaptersTest : public testing::TestWithParam<DType> {
 protected:
  // Three adapters: of columns [0, 45) and [60, 90) of y, of the second alone, and of nothing.
  void SetUp() override {
    adapters_.resize(3);
    for (const auto& [adapter, rank, first, n, scale] :
         {std::tuple(0, 4, 0, kOutputs, 2.0), std::tuple(0, 4, 60, int64_t{30}, 2.0),
          std::tuple(1, 33, 60, int64_t{30}, 0.37)}) {
      const Matrix a = Draw(rank, kInputs, &gen_), b = Draw(n, rank, &gen_);
      AdapterWeights made = {.a = {}, .b = {}, .first_column = first, .scale = scale, .projection = "q_proj"};
      made.a = Packed(a);
      made.b = Packed(b);
      adapters_[static_cast<size_t>(adapter)].qkv.push_back(std::move(made));
      naive_.push_back({adapter, Values(Of(a, GetParam()).view()), Values(Of(b, GetParam()).view()), first, scale});
    }
  }
  ops::Weight Packed(const Matrix& values) {
    const Tensor rows = Of(values, GetParam());
    auto weight =
        ops::PackWeight(stream_, {.n = rows.view().dim(0), .k = rows.view().dim(1), .dtype = GetParam()}, rows.view());
    SY_CHECK_OK(weight.status());
    return *std::move(weight);
  }
  void Add(const std::vector<int32_t>& of_rows, const TensorView& x, const TensorView& y) {
    const absl::Status status = products_.Add(stream_, adapters_, &LayerAdapter::qkv, of_rows, x, y);
    ASSERT_TRUE(status.ok()) << status;
  }

  struct Naive {
    int adapter;
    Matrix a, b;
    int64_t first;
    double scale;
  };
  ThreadPool pool_{2};
  const Stream stream_ = Stream::OnCpu(&pool_);
  std::mt19937 gen_{7};
  std::vector<LayerAdapter> adapters_;
  std::vector<Naive> naive_;
  RowAdapters products_;
};

INSTANTIATE_TEST_SUITE_P(DTypes, RowAdaptersTest, testing::Values(DType::kF32, DType::kF64, DType::kBf16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST_P(RowAdaptersTest, AreTheSumsOfDoubleArithmetic) {
  const std::vector<int32_t> of_rows = {2, 0, 1, 1, 2, 3, 0, 1, 2, 2};
  const Tensor x = Of(Draw(10, kInputs, &gen_), GetParam());
  const double epsilon = GetParam() == DType::kBf16 ? 1.0 / 128 : GetParam() == DType::kF16 ? 1.0 / 1024 : 1e-6;
  for (const DType dtype : {GetParam(), AccDType(GetParam())}) {
    const Tensor y = Of(Draw(10, 90, &gen_), dtype);
    const Matrix before = Values(y.view());
    Matrix want = before;
    double largest = 1;
    for (const Naive& each : naive_) {
      for (size_t t = 0; t < of_rows.size(); ++t) {
        if (of_rows[t] != each.adapter + 1) continue;
        const std::vector<double> row = Values(x.view())[t];
        std::vector<double> u(each.a.size());
        for (size_t r = 0; r < u.size(); ++r) {
          for (size_t j = 0; j < row.size(); ++j) u[r] += each.a[r][j] * row[j];
        }
        for (size_t i = 0; i < each.b.size(); ++i) {
          double& to = want[t][static_cast<size_t>(each.first) + i];
          for (size_t r = 0; r < u.size(); ++r) to += each.scale * each.b[i][r] * u[r];
          largest = std::max(largest, std::abs(to));
        }
      }
    }
    Add(of_rows, x.view(), y.view());
    const Matrix got = Values(y.view());
    for (size_t t = 0; t < of_rows.size(); ++t) {
      for (size_t j = 0; j < got[t].size(); ++j) {
        ASSERT_NEAR(got[t][j], want[t][j], 2 * epsilon * largest) << "row " << t << " column " << j;
      }
      if (of_rows[t] == 0 || of_rows[t] == 3) {
        EXPECT_EQ(got[t], before[t]) << "row " << t;
      }
    }
    EXPECT_GT(largest, 10) << "the adapters would not be seen";
  }
}

// Alone, among any others, and in any order.
TEST_P(RowAdaptersTest, ARowsBitsAreItsOwn) {
  constexpr int64_t kRows = 150;
  const Tensor x = Of(Draw(kRows, kInputs, &gen_), GetParam());
  const Matrix start = Draw(kRows, 90, &gen_);
  std::vector<int32_t> of_rows(kRows);
  std::uniform_int_distribution<int32_t> any(0, 3);
  for (int32_t& adapter : of_rows) adapter = any(gen_);
  for (const DType dtype : {GetParam(), AccDType(GetParam())}) {
    const Tensor together = Of(start, dtype);
    Add(of_rows, x.view(), together.view());
    const Tensor alone = Of(start, dtype);
    for (int64_t t = 0; t < kRows; ++t) {
      Add({of_rows[static_cast<size_t>(t)]}, x.view().Rows(t, 1), alone.view().Rows(t, 1));
    }
    // In the other direction, in blocks of neighbours of one adapter.
    std::vector<size_t> order(kRows);
    for (size_t i = 0; i < order.size(); ++i) order[i] = kRows - 1 - i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return of_rows[a] < of_rows[b]; });
    Matrix start_sorted, x_sorted;
    std::vector<int32_t> of_sorted;
    const Matrix x_values = Values(x.view());
    for (const size_t t : order) {
      start_sorted.push_back(start[t]);
      x_sorted.push_back(x_values[t]);
      of_sorted.push_back(of_rows[t]);
    }
    const Tensor x_there = Of(x_sorted, GetParam()), sorted = Of(start_sorted, dtype);
    Add(of_sorted, x_there.view(), sorted.view());
    const Tensor before = Of(start, dtype);
    int64_t changed = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const auto t = static_cast<int64_t>(order[i]);
      EXPECT_EQ(Bytes(alone.view().Rows(t, 1)), Bytes(together.view().Rows(t, 1))) << "row " << t;
      EXPECT_EQ(Bytes(sorted.view().Rows(static_cast<int64_t>(i), 1)), Bytes(together.view().Rows(t, 1))) << t;
      changed += Bytes(together.view().Rows(t, 1)) != Bytes(before.view().Rows(t, 1)) ? 1 : 0;
    }
    const auto adapted = std::count_if(of_rows.begin(), of_rows.end(), [](int32_t a) { return a == 1 || a == 2; });
    EXPECT_EQ(changed, adapted);
    EXPECT_GT(adapted, 30);
  }
}

// A x and the result are small numbers of fp16, scale A x is beyond it.
TEST_P(RowAdaptersTest, ALargeScaleLeavesNoRange) {
  constexpr double kScale = 64;
  const Matrix a(1, std::vector<double>(kInputs, 2000.0 / kInputs)), b = {{0.01}, {-0.02}};
  std::vector<LayerAdapter> adapters(1);
  adapters[0].qkv.push_back({.a = Packed(a), .b = Packed(b), .first_column = 1, .scale = kScale});
  const Tensor x = Of(Matrix(2, std::vector<double>(kInputs, 1)), GetParam());
  const Matrix rounded_a = Values(Of(a, GetParam()).view()), rounded_b = Values(Of(b, GetParam()).view());
  const double epsilon = GetParam() == DType::kBf16 ? 1.0 / 128 : 1.0 / 1024;
  for (const DType dtype : {GetParam(), AccDType(GetParam())}) {
    const Tensor y = Of(Matrix(2, std::vector<double>(3, 1)), dtype);
    const absl::Status status =
        products_.Add(stream_, adapters, &LayerAdapter::qkv, std::vector<int32_t>{1, 0}, x.view(), y.view());
    ASSERT_TRUE(status.ok()) << status;
    const Matrix got = Values(y.view());
    double u = 0;
    for (const double each : rounded_a[0]) u += each;
    EXPECT_EQ(got[0][0], 1);
    for (size_t i = 0; i < 2; ++i) {
      const double want = 1 + kScale * rounded_b[i][0] * u;
      EXPECT_NEAR(got[0][i + 1], want, 2 * epsilon * std::abs(want)) << DTypeName(dtype);
    }
    EXPECT_EQ(got[1], std::vector<double>(3, 1));
  }
}

TEST_P(RowAdaptersTest, AnUnknownAdapterIsAnError) {
  const Tensor x = Of(Draw(2, kInputs, &gen_), GetParam()), y = Of(Draw(2, 90, &gen_), GetParam());
  for (const int32_t wrong : {-1, 4}) {
    const std::vector<int32_t> of_rows = {1, wrong};
    const absl::Status status = products_.Add(stream_, adapters_, &LayerAdapter::qkv, of_rows, x.view(), y.view());
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(status.message(), absl::StrCat("a row's adapter is ", wrong, " of 3"));
  }
  Add({}, x.view(), y.view());  // none has one
}

}  // namespace
}  // namespace switchyard::model
