#include "scheduler/offload/forecast/forecast_blend.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard::offload {

ForecastBlend::ForecastBlend(const OffloadShape& shape, int max_ahead)
    : shape_(shape),
      max_ahead_(max_ahead),
      cells_(static_cast<size_t>(max_ahead) * kChanceLevels * kChanceLevels),
      said_(static_cast<size_t>(max_ahead) * shape.num_keys()) {}

int32_t ForecastBlend::Chance(ExpertKey key, int ahead, int32_t forecast, int32_t past) {
  SY_CHECK(1 <= ahead && ahead <= max_ahead_);
  constexpr int32_t kPrior = 32;  // observations that say: the forecast is right
  const int32_t index = ((ahead - 1) * kChanceLevels + LevelOfChance(forecast)) * kChanceLevels + LevelOfChance(past);
  said_[static_cast<size_t>(ahead - 1) * shape_.num_keys() + key] = {index, forecast};
  const LearnedChance& cell = cells_[index];
  return static_cast<int32_t>(std::clamp<int64_t>(forecast + cell.more / (cell.seen + kPrior), 0, kChance));
}

void ForecastBlend::Observe(const LayerNeed& need) {
  for (int ahead = 1; ahead <= max_ahead_; ++ahead) {
    Said* said = &said_[(static_cast<size_t>(ahead - 1) * shape_.num_layers + need.layer) * shape_.num_experts];
    for (int e = 0; e < shape_.num_experts; ++e) {
      if (said[e].cell < 0) continue;
      cells_[said[e].cell].Add(need.rows[e] > 0 ? kChance : 0, said[e].forecast);
      said[e].cell = -1;
    }
  }
}

}  // namespace switchyard::offload
