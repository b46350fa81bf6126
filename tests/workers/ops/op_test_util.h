// Utilities of the op tests: seeded tensors, their values as doubles, comparison with a reference, bitwise comparison,
// and the parameters of every op's test (dtype × instruction set).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/reference/tolerance.h"
#include "workers/ops/core/isa.h"
#include "workers/ops/core/kernels.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

struct Backend {
  DType dtype;
  Isa isa;
};

inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF64, DType::kBf16, DType::kF16};
inline constexpr DType kAccDTypes[] = {DType::kF32, DType::kF64};

// Every one of these dtypes on every instruction set that this machine has.
inline std::vector<Backend> AvailableBackends(absl::Span<const DType> dtypes) {
  std::vector<Backend> out;
  for (int isa = 0; isa <= static_cast<int>(DetectedIsa()); ++isa) {
    for (DType dtype : dtypes) out.push_back({dtype, static_cast<Isa>(isa)});
  }
  return out;
}

inline std::string BackendName(const testing::TestParamInfo<Backend>& info) {
  return std::string(DTypeName(info.param.dtype)) + "_" + IsaName(info.param.isa);
}

class OpTest : public testing::TestWithParam<Backend> {
 protected:
  OpTest() { UseKernelsForTest(GetParam().isa); }
  ~OpTest() override { UseKernelsForTest(CurrentIsa()); }

  DType dtype() const { return GetParam().dtype; }
  DType acc() const { return AccDType(dtype()); }
  const Stream& stream() const { return stream_; }

  ThreadPool pool_{1};
  Stream stream_ = Stream::OnCpu(&pool_);
};

#define SY_INSTANTIATE_OP_TEST(fixture, dtypes) \
  INSTANTIATE_TEST_SUITE_P(Backends, fixture, testing::ValuesIn(AvailableBackends(dtypes)), BackendName)

inline void Set(const TensorView& t, int64_t row, int64_t column, double value) {
  VisitDType(t.dtype(), [&]<class Elem>() { t.row<Elem>(row)[column] = Elem(static_cast<Acc<Elem>>(value)); });
}
inline double Get(const TensorView& t, int64_t row, int64_t column) {
  return VisitDType(t.dtype(),
                    [&]<class Elem>() -> double { return static_cast<Acc<Elem>>(t.row<Elem>(row)[column]); });
}

inline std::vector<double> RowOf(const TensorView& t, int64_t row) {
  std::vector<double> out;
  for (int64_t c = 0; c < t.dim(1); ++c) out.push_back(Get(t, row, c));
  return out;
}

// A matrix of normally distributed values.
inline Tensor RandomMatrix(DType dtype, int64_t rows, int64_t columns, uint32_t seed, double scale = 1.0) {
  Tensor t(dtype, {rows, columns});
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) Set(t, r, c, normal(generator));
  }
  return t;
}

inline Tensor Copy(const TensorView& from) {
  Tensor to(from.dtype(), from.shape());
  const int64_t bytes = from.NumElements() / std::max<int64_t>(from.dim(0), 1) * DTypeBytes(from.dtype());
  for (int64_t r = 0; r < from.dim(0); ++r) {
    std::memcpy(static_cast<char*>(to.view().raw()) + r * bytes,
                static_cast<const char*>(from.raw()) + r * from.row_stride() * DTypeBytes(from.dtype()), bytes);
  }
  return to;
}

inline void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected,
                       reference::Tolerance tolerance, const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size()) << where;
  double largest = 0;
  for (double v : expected) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance.relative * largest + 1e-30) << where << " element " << i;
  }
}

// The same bits in rows [row, row + other.dim(0)) of a and all of b.
inline testing::AssertionResult SameBits(const TensorView& a, int64_t row, const TensorView& b) {
  const int64_t bytes = DTypeBytes(a.dtype());
  const int64_t width = b.dim(0) > 0 ? b.NumElements() / b.dim(0) * bytes : 0;
  for (int64_t r = 0; r < b.dim(0); ++r) {
    const char* x = static_cast<const char*>(a.raw()) + (row + r) * a.row_stride() * bytes;
    const char* y = static_cast<const char*>(b.raw()) + r * b.row_stride() * bytes;
    if (std::memcmp(x, y, width) != 0) return testing::AssertionFailure() << "row " << row + r << " differs";
  }
  return testing::AssertionSuccess();
}

// Batch invariance of row ops: calls fn(stream, begin, count) for all rows at once, for every row by itself, for every
// number of rows up to 64 and some larger ones, and in chunks of 7; on one thread and on three.  Each result, a matrix
// of count rows, must equal those rows of the whole.
template <class Fn>
void ExpectRowsIgnoreCompany(int64_t rows, const Fn& fn) {
  ThreadPool one(1), three(3, /*spin=*/false);
  const Tensor whole = fn(Stream::OnCpu(&one), int64_t{0}, rows);
  for (ThreadPool* pool : {&one, &three}) {
    const auto compare = [&](int64_t begin, int64_t count) {
      ASSERT_TRUE(SameBits(whole, begin, fn(Stream::OnCpu(pool), begin, count)))
          << count << " rows from " << begin << ", threads " << pool->num_threads();
    };
    for (int64_t chunk : {1, 7, 512}) {
      for (int64_t begin = 0; begin < rows; begin += chunk) {
        ASSERT_NO_FATAL_FAILURE(compare(begin, std::min<int64_t>(chunk, rows - begin)));
      }
    }
    for (int64_t count = 1; count <= rows; count += count < 64 ? 1 : 61) {
      ASSERT_NO_FATAL_FAILURE(compare(count * 37 % (rows - count + 1), count));
    }
  }
}

}  // namespace switchyard::ops
