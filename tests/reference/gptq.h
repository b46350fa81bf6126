// GPTQ as its paper has it, naive and in double: the reference of workers/quantize/gptq.  Goes by the inverse of H and
// that one's Cholesky factor, as workers/quantize does not; shares no code with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace switchyard::reference {

using Matrix = std::vector<std::vector<double>>;

// Of a symmetric positive matrix, by Gauss and Jordan.
inline Matrix Inverse(Matrix a) {
  const size_t k = a.size();
  Matrix inverse(k, std::vector<double>(k));
  for (size_t i = 0; i < k; ++i) inverse[i][i] = 1;
  for (size_t i = 0; i < k; ++i) {
    size_t pivot = i;
    for (size_t row = i; row < k; ++row) {
      if (std::fabs(a[row][i]) > std::fabs(a[pivot][i])) pivot = row;
    }
    std::swap(a[i], a[pivot]);
    std::swap(inverse[i], inverse[pivot]);
    const double by = a[i][i];
    for (size_t j = 0; j < k; ++j) a[i][j] /= by, inverse[i][j] /= by;
    for (size_t row = 0; row < k; ++row) {
      const double times = a[row][i];
      if (row == i || times == 0) continue;
      for (size_t j = 0; j < k; ++j) a[row][j] -= times * a[i][j], inverse[row][j] -= times * inverse[i][j];
    }
  }
  return inverse;
}

// Upper triangular U with Uᵀ U = a.
inline Matrix UpperCholesky(const Matrix& a) {
  const size_t k = a.size();
  Matrix u(k, std::vector<double>(k));
  for (size_t i = 0; i < k; ++i) {
    for (size_t j = i; j < k; ++j) {
      double sum = a[i][j];
      for (size_t t = 0; t < i; ++t) sum -= u[t][i] * u[t][j];
      u[i][j] = i == j ? std::sqrt(sum) : sum / u[i][i];
    }
  }
  return u;
}

struct GptqCase {
  int bits = 4;
  size_t group = 32;
  double damping = 0.01;
  std::function<double(const std::vector<double>& values)> choose_scale;
};

// The values that the rows of w become.  h: Xᵀ X.
inline Matrix Gptq(const GptqCase& c, Matrix w, Matrix h) {
  const size_t k = h.size();
  double mean = 0;
  for (size_t i = 0; i < k; ++i) mean += h[i][i] / static_cast<double>(k);
  for (size_t i = 0; i < k; ++i) h[i][i] += c.damping * mean;
  const Matrix u = UpperCholesky(Inverse(h));
  const double most = std::pow(2, c.bits - 1) - 1;
  for (std::vector<double>& row : w) {
    double scale = 0;
    for (size_t j = 0; j < k; ++j) {
      if (j % c.group == 0) {
        scale =
            c.choose_scale({row.begin() + static_cast<int64_t>(j), row.begin() + static_cast<int64_t>(j + c.group)});
      }
      const double code = scale == 0 ? 0 : std::clamp(std::nearbyint(row[j] / scale), -most - 1, most);
      const double error = (row[j] - code * scale) / u[j][j];
      row[j] = code * scale;
      for (size_t t = j + 1; t < k; ++t) row[t] -= error * u[j][t];
    }
  }
  return w;
}

}  // namespace switchyard::reference
