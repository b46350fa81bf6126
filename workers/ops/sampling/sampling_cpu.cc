#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

// Lane by lane, as comparisons of whole vectors that are wider than the machine's become code for each element.
template <class Acc>
LogitStats Scan(const Acc* x, int64_t n) {
  constexpr int kN = 4 * Lanes<Acc>::kCount;
  const Acc inf = static_cast<Acc>(__builtin_inf());
  Acc max[kN];
  int32_t nan[kN] = {};
  for (Acc& lane : max) lane = -inf;
  int64_t i = 0;
  for (; i + kN <= n; i += kN) {
    for (int k = 0; k < kN; ++k) {
      max[k] = x[i + k] > max[k] ? x[i + k] : max[k];
      nan[k] |= x[i + k] != x[i + k];
    }
  }
  Acc largest = -inf;
  bool broken = false;
  for (; i < n; ++i) {
    largest = x[i] > largest ? x[i] : largest;
    broken |= x[i] != x[i];
  }
  for (int k = 0; k < kN; ++k) {
    largest = max[k] > largest ? max[k] : largest;
    broken |= nan[k] != 0;
  }
  broken |= largest == inf || largest == -inf;
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
