#include "tests/reference/gemm.h"

#include <cmath>

namespace switchyard::reference {

Product Gemm(const std::vector<double>& x, const std::vector<double>& w, int64_t m, int64_t n, int64_t k) {
  Product product{std::vector<double>(m * n), std::vector<double>(m * n)};
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t p = 0; p < k; ++p) {
        const double term = x[i * k + p] * w[j * k + p];
        product.y[i * n + j] += term;
        product.magnitude[i * n + j] += std::fabs(term);
      }
    }
  }
  return product;
}

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

}  // namespace switchyard::reference
