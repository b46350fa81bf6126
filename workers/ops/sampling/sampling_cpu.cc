#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

template <class Acc>
LogitStats Scan(const Acc* x, int64_t n) {
  constexpr int kN = Lanes<Acc>::kCount;
  const Acc inf = static_cast<Acc>(__builtin_inf());
  VecT<Acc> max = Splat(-inf);
  VecT<Acc> nan = {};  // becomes NaN where any lane was NaN
  for (int64_t i = 0; i < n; i += kN) {
    const VecT<Acc> v = LoadOrLowest(x + i, n - i < kN ? n - i : kN);
    max = Max(v, max);
    nan = v != v ? v : nan;
  }
  const Acc largest = MaxLanes(max);
  bool broken = largest == inf || largest == -inf;
  for (int i = 0; i < kN; ++i) broken |= nan[i] != nan[i];
  return {.max = static_cast<double>(largest), .broken = broken};
}

// Long sums of floats lose digits: every so many terms the lanes are emptied into a double.
constexpr int64_t kSumBlock = 2048;

template <class Acc>
double Sum(const Acc* x, int64_t n, Acc max, Acc scale, Acc* weights) {
  constexpr int kN = Lanes<Acc>::kCount;
  double total = 0;
  for (int64_t block = 0; block < n; block += kSumBlock) {
    const int64_t end = block + kSumBlock < n ? block + kSumBlock : n;
    VecT<Acc> sum = {};
    for (int64_t i = block; i < end; i += kN) {
      const int64_t count = end - i < kN ? end - i : kN;
      const VecT<Acc> w = Exp((LoadOrLowest(x + i, count) - max) * scale);
      sum += w;
      if (weights) StorePart(w, weights + i, count);
    }
    total += static_cast<double>(SumLanes(sum));
  }
  return total;
}

}  // namespace

LogitStats ScanLogits(uint8_t dtype, const void* x, int64_t n) {
  return dtype == 1 ? Scan(static_cast<const double*>(x), n) : Scan(static_cast<const float*>(x), n);
}

double ExpSum(uint8_t dtype, const void* x, int64_t n, double max, double scale, void* weights) {
  if (dtype == 1) return Sum(static_cast<const double*>(x), n, max, scale, static_cast<double*>(weights));
  return Sum(static_cast<const float*>(x), n, static_cast<float>(max), static_cast<float>(scale),
             static_cast<float*>(weights));
}

}  // namespace switchyard::ops::SY_KERNEL_NS
