#include "scheduler/placement/route/exchange_price.h"

#include <algorithm>

namespace switchyard::placement {
namespace {

// Variance of the rows over their mean squared: below it a fit shows noise more than rows.
constexpr double kLeastSpread = 1.0 / 16;

}  // namespace

void ExchangeCost::Add(double rows, double seconds) {
  ++steps_;
  rows_ += rows;
  seconds_ += seconds;
  rows_squared_ += rows * rows;
  rows_seconds_ += rows * seconds;
}

void ExchangeCost::Fade() {
  for (double* sum : {&steps_, &rows_, &seconds_, &rows_squared_, &rows_seconds_}) *sum /= 2;
}

double ExchangeCost::seconds_per_row() const {
  if (steps_ < kLeastSteps || rows_ <= 0) return 0;
  const double mean = rows_ / steps_;
  const double variance = rows_squared_ / steps_ - mean * mean;
  if (variance < kLeastSpread * mean * mean) return 0;
  const double slope = (rows_seconds_ / steps_ - mean * seconds_ / steps_) / variance;
  return std::clamp(slope, 0.0, seconds_ / rows_);
}

}  // namespace switchyard::placement
