// The matrix product in double precision, one scalar at a time.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::reference {

struct Product {
  std::vector<double> y;          // [m, n] sum over k of x[m, k] * w[n, k]
  std::vector<double> magnitude;  // [m, n] sum of the products' absolute values, the scale of rounding errors
};

Product Gemm(const std::vector<double>& x, const std::vector<double>& w, int64_t m, int64_t n, int64_t k);

double Silu(double x);

}  // namespace switchyard::reference
