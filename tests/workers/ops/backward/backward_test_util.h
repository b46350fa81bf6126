// Utilities of the tests of backward passes, beside op_test_util.h.
#pragma once

#include <functional>
#include <vector>

#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {

inline double Dot(const TensorView& a, const TensorView& b) {
  double sum = 0;
  for (int64_t r = 0; r < a.dim(0); ++r) {
    for (int64_t c = 0; c < a.dim(1); ++c) sum += Get(a, r, c) * Get(b, r, c);
  }
  return sum;
}

// By finite differences in fp64: each element of `gradient` is how loss() changes with that of x.
inline void ExpectIsGradient(const TensorView& x, const TensorView& gradient, const std::function<double()>& loss) {
  ASSERT_EQ(x.dtype(), DType::kF64);
  constexpr double kStep = 1e-5;
  double largest = 0;
  for (int64_t r = 0; r < x.dim(0); ++r) {
    for (int64_t c = 0; c < x.dim(1); ++c) largest = std::max(largest, std::abs(Get(gradient, r, c)));
  }
  for (int64_t r = 0; r < x.dim(0); ++r) {
    for (int64_t c = 0; c < x.dim(1); ++c) {
      const double at = Get(x, r, c);
      Set(x, r, c, at + kStep);
      const double above = loss();
      Set(x, r, c, at - kStep);
      const double below = loss();
      Set(x, r, c, at);
      ASSERT_NEAR(Get(gradient, r, c), (above - below) / (2 * kStep), 1e-7 * largest + 1e-9) << r << ", " << c;
    }
  }
}

// fn(stream) gives the same bits on any number of threads.
inline void ExpectThreadsDoNotMatter(const std::function<Tensor(const Stream&)>& fn) {
  ThreadPool one(1);
  const Tensor want = fn(Stream::OnCpu(&one));
  for (int threads : {2, 3, 5}) {
    ThreadPool pool(threads, /*spin=*/false);
    const Tensor got = fn(Stream::OnCpu(&pool));
    ASSERT_EQ(std::memcmp(got.view().raw(), want.view().raw(), want.bytes()), 0) << threads << " threads";
  }
}

// As ExpectNear where terms cancel: relative to `scale` if everything is smaller.
inline void ExpectNearAtScale(std::vector<double> actual, std::vector<double> expected, double scale,
                              reference::Tolerance tolerance, const std::string& where) {
  actual.push_back(scale), expected.push_back(scale);
  ExpectNear(actual, expected, tolerance, where);
}

inline void ExpectNames(const absl::Status& status, const std::string& says) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(says));
}

}  // namespace switchyard::ops
