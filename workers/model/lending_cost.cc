#include "workers/model/lending_cost.h"

#include <algorithm>
#include <cmath>

namespace switchyard {
namespace {

constexpr double kFlopPerSecond16Bit = 0.33e12;  // of one thread, in whole layers
constexpr double kFlopPerSecond32Bit = 0.1e12;
constexpr double kBytesPerSecond = 0.5e9;  // of rows on their way, waiting included
constexpr double kSecondsPerLayer = 1e-3;  // of two exchanges with hardly anything in them
constexpr double kWorthIt = 1.5;           // gain over cost: estimates are off by this much
constexpr int32_t kFewest = 32;
constexpr double kNoStepHasMore = 1e6;

}  // namespace

int32_t MinLoanRows(const ModelConfig& config, DType dtype, int threads) {
  const auto width = static_cast<double>(config.qkv_width() + config.q_width());
  const double rate = (DTypeBytes(dtype) == 2 ? kFlopPerSecond16Bit : kFlopPerSecond32Bit) * threads;
  const double saved = 2 * static_cast<double>(config.hidden) * width / rate;
  const double cost = kWorthIt * width * static_cast<double>(DTypeBytes(dtype)) / kBytesPerSecond;
  if (saved <= cost) return 0;
  const double rows = kWorthIt * kSecondsPerLayer / (saved - cost);
  return std::max(kFewest, static_cast<int32_t>(std::ceil(std::min(rows, kNoStepHasMore))));
}

}  // namespace switchyard
