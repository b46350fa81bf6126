#include "workers/train/step/router_balance.h"

#include <numeric>

#include "scheduler/base/check.h"

namespace switchyard::train {

void MoveRouterBias(double rate, absl::Span<const int64_t> loads, const TensorView& bias) {
  const auto experts = static_cast<int64_t>(loads.size());
  SY_CHECK_EQ(bias.NumElements(), experts);
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  VisitDType(bias.dtype(), [&]<class Elem>() {
    for (int64_t e = 0; e < experts; ++e) {
      // (In whole numbers: a load of just the mean is one.)
      const int64_t over = loads[e] * experts - total;
      const int sign = over < 0 ? 1 : over > 0 ? -1 : 0;
      Elem& value = bias.data<Elem>()[e];
      value = static_cast<Elem>(static_cast<Acc<Elem>>(value) + static_cast<Acc<Elem>>(rate * sign));
    }
  });
}

}  // namespace switchyard::train
