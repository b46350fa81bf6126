#include "workers/quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::quantize {
namespace {

constexpr int64_t kRowsAtATime = 1024;  // whose errors are in memory
constexpr int64_t kLeastColumns = 64;   // of a step, for the products' sake

// Columns [begin, end) of the factor.
struct Step {
  int64_t begin = 0, end = 0;
  Tensor inside;  // [width, width] fp64: rows [begin, end)
  int64_t width() const { return end - begin; }
  double at(int64_t i, int64_t j) const { return inside.data<double>()[i * width() + j]; }
};

Step MakeStep(const TensorView& factor, int64_t begin, int64_t end) {
  Step step = {.begin = begin, .end = end, .inside = Tensor(DType::kF64, {end - begin, end - begin})};
  for (int64_t i = 0; i < step.width(); ++i) {
    const double* const from = factor.row<double>(begin + i) + begin;
    std::copy(from, from + step.width(), step.inside.view().row<double>(i));
  }
  return step;
}

// [rows, width]: Σ over columns i before the step of e[i] R[i, j].
absl::Status ErrorsBefore(const Stream& stream, const TensorView& factor, const Step& step, const TensorView& errors,
                          const TensorView& sums) {
  if (step.begin == 0) {
    std::fill(sums.data<double>(), sums.data<double>() + sums.NumElements(), 0.0);
    return absl::OkStatus();
  }
  Tensor above(DType::kF64, {step.width(), step.begin});
  for (int64_t i = 0; i < step.begin; ++i) {
    const double* const from = factor.row<double>(i) + step.begin;
    for (int64_t j = 0; j < step.width(); ++j) above.data<double>()[j * step.begin + i] = from[j];
  }
  ASSIGN_OR_RETURN(const ops::Weight weight,
                   ops::PackWeight(stream, {.n = step.width(), .k = step.begin, .dtype = DType::kF64}, above));
  return ops::Gemm(stream, {}, errors.Columns(0, step.begin), weight, TensorView(), sums);
}

// Rounds one row's columns of a step.  sums: of the step, added to; errors: of all columns.
void RoundSteps(const Step& step, const float* values, int64_t row, double* sums, double* errors, QuantizedMatrix* to) {
  const int64_t width = step.width(), group = to->format.group;
  std::vector<double> left(static_cast<size_t>(width));
  std::vector<float> free(static_cast<size_t>(group));
  float inverse = 0, scale = 0;
  for (int64_t j = 0; j < width; ++j) {
    const int64_t column = step.begin + j;
    if (column % group == 0) {
      // The group's columns if they were not rounded: each makes its own term of the error zero.
      std::copy(sums, sums + width, left.begin());
      for (int64_t c = 0; c < group; ++c) {
        const double error = -left[static_cast<size_t>(j + c)] / step.at(j + c, j + c);
        free[static_cast<size_t>(c)] = static_cast<float>(static_cast<double>(values[column + c]) - error);
        const double* const above = step.inside.view().row<double>(j + c);
        for (int64_t t = c + 1; t < group; ++t) left[static_cast<size_t>(j + t)] += above[j + t] * error;
      }
      scale = ChooseScale(to->format.bits, free);
      if (!std::isfinite(scale)) {  // a factor that is nearly singular
        std::copy(values + column, values + column + group, free.begin());
        scale = ChooseScale(to->format.bits, free);
      }
      inverse = InverseOf(scale);
      to->SetScale(row, column / group, scale);
    }
    const double value = values[column], wanted = value + sums[j] / step.at(j, j);
    const int32_t code = CodeOf(to->format.bits, static_cast<float>(wanted), inverse);
    to->SetCode(row, column, code);
    const double error = value - static_cast<double>(code) * static_cast<double>(scale);
    errors[column] = error;
    const double* const above = step.inside.view().row<double>(j);
    for (int64_t t = j + 1; t < width; ++t) sums[t] += above[t] * error;
  }
}

}  // namespace

absl::Status RoundByFactor(const Stream& stream, const TensorView& factor, const TensorView& values,
                           QuantizedMatrix* to) {
  const int64_t rows = values.dim(0), columns = values.dim(1), group = to->format.group;
  SY_CHECK(factor.dim(0) == columns && factor.dim(1) == columns && to->rows == rows && to->columns == columns);
  const int64_t width = (kLeastColumns + group - 1) / group * group;
  const int64_t most = std::min(rows, kRowsAtATime);
  const Tensor errors(DType::kF64, {most, columns}), sums(DType::kF64, {most, width});
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    for (int64_t begin = 0; begin < columns; begin += width) {
      const Step step = MakeStep(factor, begin, std::min(begin + width, columns));
      const TensorView before(sums.view().raw(), DType::kF64, {count, step.width()});
      RETURN_IF_ERROR(ErrorsBefore(stream, factor, step, errors.view().Rows(0, count), before));
      stream.pool().ParallelFor(count, 4, [&](int64_t from, int64_t end) {
        for (int64_t i = from; i < end; ++i) {
          RoundSteps(step, values.row<float>(first + i), first + i, before.row<double>(i), errors.view().row<double>(i),
                     to);
        }
      });
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::quantize
