#include "workers/model/runner/rebalancing_cost.h"

#include <algorithm>
#include <cmath>

namespace switchyard::model {
namespace {

// Of one thread, in whole layers.
constexpr double kFlopPerSecondAmx = 0.52e12;
constexpr double kFlopPerSecondBf16 = 0.33e12;
constexpr double kFlopPerSecondFma = 0.1e12;  // fp32, and what is widened to it: a guess
constexpr double kBytesPerSecond = 0.5e9;     // of transfers, waiting included
constexpr double kSecondsPerLayer = 1e-3;     // of two small exchanges
constexpr double kWorthIt = 1.5;              // gain over cost: the error of estimates
constexpr int32_t kFewest = 32;
constexpr double kNoStepHasMore = 1e6;

double FlopPerSecond(DType dtype, ops::Isa isa) {
  if (dtype != DType::kBf16 || isa < ops::Isa::kAvx512Bf16) return kFlopPerSecondFma;
  return isa == ops::Isa::kAmx ? kFlopPerSecondAmx : kFlopPerSecondBf16;
}

}  // namespace

int32_t MinRebalanceRows(const ModelConfig& config, DType dtype, ops::Isa isa, int threads) {
  const auto width = static_cast<double>(config.qkv_width() + config.q_width());
  const double rate = FlopPerSecond(dtype, isa) * threads;
  const double saved = 2 * static_cast<double>(config.hidden) * width / rate;
  const double cost = kWorthIt * width * static_cast<double>(DTypeBytes(dtype)) / kBytesPerSecond;
  if (saved <= cost) return 0;
  const double rows = kWorthIt * kSecondsPerLayer / (saved - cost);
  return std::max(kFewest, static_cast<int32_t>(std::ceil(std::min(rows, kNoStepHasMore))));
}

}  // namespace switchyard::model
