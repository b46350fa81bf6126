#include "workers/moe/placement/gate_cost.h"

#include <algorithm>

namespace switchyard::moe {

void GateCost::Add(int64_t took, int64_t expected) {
  if (measured_ || gates_ == 0) return;
  samples_.push_back(std::max<int64_t>(0, took - expected));
  if (static_cast<int>(samples_.size()) < gates_) return;
  const auto middle = samples_.begin() + gates_ / 2;
  std::nth_element(samples_.begin(), middle, samples_.end());
  beside_ = *middle;
  measured_ = true;
  samples_ = {};
}

}  // namespace switchyard::moe
