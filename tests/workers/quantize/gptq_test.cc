// GPTQ against its naive reference in double, and against rounding to nearest.
#include "workers/quantize/gptq.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"
#include "tests/reference/gptq.h"
#include "workers/ops/gemm/weight.h"
#include "workers/quantize/gram.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::quantize {
namespace {

using reference::Matrix;

struct Shape {
  int64_t rows, columns, inputs;
  GroupFormat format;
};

class GptqTest : public ::testing::Test {
 protected:
  // Values of [n, k] and inputs [T, k] that depend on each other, as hidden states do.
  void Draw(const Shape& shape) {
    std::mt19937 source(static_cast<uint32_t>(shape.columns));
    std::normal_distribution<float> normal;
    values_ = Tensor(DType::kF32, {shape.rows, shape.columns});
    inputs_ = Tensor(DType::kF32, {shape.inputs, shape.columns});
    for (int64_t i = 0; i < shape.rows * shape.columns; ++i) values_.data<float>()[i] = 0.1F * normal(source);
    for (int64_t t = 0; t < shape.inputs; ++t) {
      float* const x = inputs_.view().row<float>(t);
      for (int64_t j = 0; j < shape.columns; ++j) x[j] = normal(source) + (j >= 3 ? 0.8F * x[j - 3] : 0);
    }
  }

  Tensor FactorOf(const Stream& stream) const {
    Gram gram(inputs_.dim(1));
    // In two batches.
    const int64_t half = inputs_.dim(0) / 2;
    EXPECT_TRUE(gram.Add(stream, inputs_.view().Rows(0, half)).ok());
    EXPECT_TRUE(gram.Add(stream, inputs_.view().Rows(half, inputs_.dim(0) - half)).ok());
    EXPECT_EQ(gram.rows(), inputs_.dim(0));
    Tensor factor(DType::kF64, gram.sums().shape());
    std::copy(gram.sums().data<double>(), gram.sums().data<double>() + factor.view().NumElements(),
              factor.data<double>());
    EXPECT_TRUE(FactorInPlace(stream, 0.01, factor).ok());
    return factor;
  }

  QuantizedMatrix Quantized(int threads, const GroupFormat& format, const TensorView& values) const {
    ThreadPool pool(threads, /*spin=*/false);
    const Stream stream = Stream::OnCpu(&pool);
    QuantizedMatrix matrix(format, values.dim(0), values.dim(1));
    EXPECT_TRUE(RoundByFactor(stream, FactorOf(stream), values, &matrix).ok());
    return matrix;
  }

  Matrix Inputs() const { return RowsOf(inputs_.view()); }
  static Matrix RowsOf(const TensorView& x) {
    Matrix rows;
    for (int64_t i = 0; i < x.dim(0); ++i) rows.emplace_back(x.row<float>(i), x.row<float>(i) + x.dim(1));
    return rows;
  }
  static Matrix RowsOf(const QuantizedMatrix& matrix) {
    std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.columns));
    matrix.Read(0, matrix.rows, values.data());
    return RowsOf(TensorView(values.data(), DType::kF32, {matrix.rows, matrix.columns}));
  }

  Matrix Products() const {
    const Matrix x = Inputs();
    Matrix h(x[0].size(), std::vector<double>(x[0].size()));
    for (const std::vector<double>& row : x) {
      for (size_t i = 0; i < row.size(); ++i) {
        for (size_t j = 0; j < row.size(); ++j) h[i][j] += row[i] * row[j];
      }
    }
    return h;
  }

  // ‖X (W - Q)ᵀ‖².
  double ErrorOf(const Matrix& quantized) const {
    const Matrix w = RowsOf(values_.view());
    double error = 0;
    for (const std::vector<double>& x : Inputs()) {
      for (size_t row = 0; row < w.size(); ++row) {
        double sum = 0;
        for (size_t j = 0; j < x.size(); ++j) sum += x[j] * (w[row][j] - quantized[row][j]);
        error += sum * sum;
      }
    }
    return error;
  }

  Tensor values_, inputs_;
};

constexpr Shape kShapes[] = {{24, 96, 200, {4, 32}},  // one block of the factor
                             {9, 264, 500, {4, 8}},   // three, the first of them partial; several groups in a step
                             {7, 320, 90, {8, 160}},  // fewer inputs than columns
                             {5, 192, 300, {4, 192}}};

TEST_F(GptqTest, TheFactorIsOfTheDampedProducts) {
  for (const Shape& shape : kShapes) {
    Draw(shape);
    ThreadPool pool(2, /*spin=*/false);
    const Tensor factor = FactorOf(Stream::OnCpu(&pool));
    Matrix h = Products();
    double mean = 0;
    for (size_t i = 0; i < h.size(); ++i) mean += h[i][i] / static_cast<double>(h.size());
    for (size_t i = 0; i < h.size(); ++i) h[i][i] += 0.01 * mean;
    for (int64_t i = 0; i < shape.columns; ++i) {
      for (int64_t j = 0; j < shape.columns; ++j) {
        const double* const a = factor.view().row<double>(i);
        const double* const b = factor.view().row<double>(j);
        double sum = 0;
        for (int64_t t = std::max(i, j); t < shape.columns; ++t) sum += a[t] * b[t];
        ASSERT_NEAR(sum, h[static_cast<size_t>(i)][static_cast<size_t>(j)], 1e-6 * mean) << i << ", " << j;
        if (j < i) ASSERT_EQ(a[j], 0);
      }
    }
  }
}

TEST_F(GptqTest, IsTheReferenceAndBetterThanToNearest) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.columns);
    Draw(shape);
    const QuantizedMatrix matrix = Quantized(2, shape.format, values_);
    const auto choose = [&](const std::vector<double>& values) {
      return static_cast<double>(ChooseScale(shape.format.bits, std::vector<float>(values.begin(), values.end())));
    };
    const Matrix expected = reference::Gptq(
        {.bits = shape.format.bits, .group = static_cast<size_t>(shape.format.group), .choose_scale = choose},
        RowsOf(values_.view()), Products());
    const Matrix found = RowsOf(matrix);
    // A value on the border of two codes may go either way, and what follows in its row with it.
    int64_t unlike = 0;
    for (size_t i = 0; i < found.size(); ++i) unlike += found[i] == expected[i] ? 0 : 1;
    EXPECT_LE(unlike, shape.rows / 8) << "rows of " << shape.rows;
    EXPECT_NEAR(ErrorOf(found), ErrorOf(expected), 1e-2 * ErrorOf(expected));
    QuantizedMatrix nearest(shape.format, shape.rows, shape.columns);
    for (int64_t row = 0; row < shape.rows; ++row) RoundRow(values_.view().row<float>(row), row, &nearest);
    RecordProperty("error_of_nearest", std::to_string(ErrorOf(found) / ErrorOf(RowsOf(nearest))));
    EXPECT_LT(ErrorOf(found), 0.7 * ErrorOf(RowsOf(nearest)));
  }
}

TEST_F(GptqTest, ARowsCodesDependOnNeitherThreadsNorOtherRows) {
  const Shape shape = {1100, 64, 100, {4, 32}};  // more rows than are done at a time
  Draw(shape);
  const QuantizedMatrix matrix = Quantized(1, shape.format, values_);
  const QuantizedMatrix threaded = Quantized(3, shape.format, values_);
  EXPECT_EQ(matrix.words, threaded.words);
  EXPECT_EQ(matrix.scales, threaded.scales);
  for (const int64_t row : {0, 500, 1030, 1099}) {
    const QuantizedMatrix alone = Quantized(1, shape.format, values_.view().Rows(row, 1));
    EXPECT_EQ(RowsOf(alone)[0], RowsOf(matrix)[static_cast<size_t>(row)]) << row;
  }
}

// Of inputs that are always zero nothing is known, but that they do not matter.
TEST_F(GptqTest, InputsThatAreZeroDoNoHarm) {
  Draw({4, 64, 100, {4, 32}});
  for (int64_t t = 0; t < 100; ++t) inputs_.view().row<float>(t)[7] = 0;
  const Matrix found = RowsOf(Quantized(1, {4, 32}, values_));
  for (const std::vector<double>& row : found) {
    for (const double value : row) EXPECT_TRUE(std::isfinite(value));
  }
  ThreadPool pool(1, /*spin=*/false);
  const Tensor zeros = Tensor::Zeros(DType::kF64, {8, 8});
  EXPECT_TRUE(absl::IsFailedPrecondition(FactorInPlace(Stream::OnCpu(&pool), 0.01, zeros)));
}

}  // namespace
}  // namespace switchyard::quantize
