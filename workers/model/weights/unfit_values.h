// Values of a checkpoint that the served dtype cannot hold.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "workers/tensor/dtype.h"

namespace switchyard::model {

inline constexpr double kLargestHalf = 65504;

// Largest magnitude that the served dtype can hold.
inline double LargestOf(DType dtype) {
  if (dtype == DType::kF16) return kLargestHalf;
  if (dtype == DType::kBf16) return 3.3895313892515355e38;
  return dtype == DType::kF64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
}

// Index of the first element that is NaN, Inf or larger than `largest`; -1 if there is none.
template <class Elem>
int64_t FindUnfit(const Elem* values, int64_t n, double largest) {
  const auto limit = static_cast<Acc<Elem>>(std::min<double>(largest, std::numeric_limits<Acc<Elem>>::max()));
  constexpr int64_t kBlock = 4096;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    bool fit = true;
    for (int64_t i = begin; i < end; ++i) fit &= std::abs(static_cast<Acc<Elem>>(values[i])) <= limit;
    if (fit) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (!(std::abs(static_cast<Acc<Elem>>(values[i])) <= limit)) return i;
    }
  }
  return -1;
}

}  // namespace switchyard::model
