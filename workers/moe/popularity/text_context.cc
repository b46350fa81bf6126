#include "workers/moe/popularity/text_context.h"

#include <algorithm>
#include <vector>

#include "scheduler/base/check.h"

namespace switchyard::moe {
namespace {

// The mean of one text's rows, from row to row.
template <class Acc>
class RunningMean {
 public:
  explicit RunningMean(int64_t width) : mean_(static_cast<size_t>(width)) {}
  template <class Elem>
  const std::vector<Acc>& Take(const Elem* row, bool begins) {
    const Acc kept = begins ? Acc{0} : static_cast<Acc>(kContextKept);
    for (size_t c = 0; c < mean_.size(); ++c) {
      const auto value = static_cast<Acc>(row[c]);
      mean_[c] = value + kept * (mean_[c] - value);
    }
    return mean_;
  }

 private:
  std::vector<Acc> mean_;
};

}  // namespace

Tensor WithContext(const TensorView& x, absl::Span<const uint8_t> begins, int64_t first, int64_t count) {
  SY_CHECK_EQ(static_cast<int64_t>(begins.size()), x.dim(0));
  SY_CHECK(0 <= first && first + count <= x.dim(0));
  const int64_t hidden = x.dim(1), reached = std::max<int64_t>(0, first - kContextReach);
  Tensor features(AccDType(x.dtype()), {count, 2 * hidden});
  VisitDType(x.dtype(), [&]<class Elem>() {
    RunningMean<Acc<Elem>> mean(hidden);
    for (int64_t t = reached; t < first + count; ++t) {
      const Elem* const row = x.row<Elem>(t);
      const std::vector<Acc<Elem>>& now = mean.Take(row, t == reached || begins[static_cast<size_t>(t)] != 0);
      if (t < first) continue;
      Acc<Elem>* const to = features.view().row<Acc<Elem>>(t - first);
      for (int64_t c = 0; c < hidden; ++c) to[c] = static_cast<Acc<Elem>>(row[c]);
      std::copy(now.begin(), now.end(), to + hidden);
    }
  });
  return features;
}

Tensor StackedMap(const TensorView& fitted) {
  const int64_t experts = fitted.dim(0), hidden = (fitted.dim(1) - 1) / 2;
  SY_CHECK_EQ(fitted.dim(1), 2 * hidden + 1);
  Tensor stacked(DType::kF64, {2 * experts, hidden + 1});
  for (int64_t e = 0; e < experts; ++e) {
    const double* const from = fitted.row<double>(e);
    double* const own = stacked.view().row<double>(e);
    double* const mean = stacked.view().row<double>(experts + e);
    std::copy_n(from, hidden, own);
    std::copy_n(from + hidden, hidden, mean);
    own[hidden] = from[2 * hidden];
    mean[hidden] = 0;
  }
  return stacked;
}

}  // namespace switchyard::moe
