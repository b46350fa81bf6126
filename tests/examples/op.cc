// One op on the CPU: RMSNorm of three rows, beside the arithmetic that it stands for.
#include <algorithm>
#include <cmath>
#include <iostream>

#include "scheduler/base/check.h"
#include "workers/ops/norm/rms_norm.h"
#include "workers/tensor/thread_pool.h"

using namespace switchyard;

int main() {
  constexpr int kRows = 3, kWidth = 64;
  ThreadPool pool(2);
  const Stream stream = Stream::OnCpu(&pool);
  const Tensor x(DType::kF32, {kRows, kWidth}), gamma(DType::kF32, {kWidth}), y(DType::kF32, {kRows, kWidth});
  for (int i = 0; i < kRows * kWidth; ++i) x.data<float>()[i] = std::sin(0.1f * i);
  for (int i = 0; i < kWidth; ++i) gamma.data<float>()[i] = 1 + 0.01f * i;

  SY_CHECK_OK(ops::RmsNorm(stream, {.eps = 1e-6}, x, gamma, y));

  double worst = 0;
  for (int row = 0; row < kRows; ++row) {
    const float* in = x.view().row<float>(row);
    double squares = 0;
    for (int i = 0; i < kWidth; ++i) squares += in[i] * in[i];
    for (int i = 0; i < kWidth; ++i) {
      const double expected = gamma.data<float>()[i] * in[i] / std::sqrt(squares / kWidth + 1e-6);
      worst = std::max(worst, std::abs(y.view().row<float>(row)[i] - expected));
    }
  }
  std::cout << "RMSNorm of " << x.view().ToString() << ": at most " << worst << " from the formula\n";
  SY_CHECK_LT(worst, 1e-6);

  // Batch invariance: the last row has the same bits alone and among others.
  const Tensor alone(DType::kF32, {1, kWidth});
  SY_CHECK_OK(ops::RmsNorm(stream, {.eps = 1e-6}, x.view().Rows(2, 1), gamma, alone));
  SY_CHECK(std::equal(alone.data<float>(), alone.data<float>() + kWidth, y.view().row<float>(2)));
}
