// The cost of one row more in an exchange: the slope of steps' exchange seconds over the rows that were exchanged.
//
// A line is fitted to steps of different sizes (least squares, sums that fade), so that the part that every step pays
// (messages, waiting) does not count as a row's price.  Thread-compatible.  Does not measure.
#pragma once

#include <cstdint>

namespace switchyard::placement {

class ExchangeCost {
 public:
  // Steps that a fit needs.
  static constexpr double kLeastSteps = 16;

  // One step: rows that the busiest rank exchanged, and the seconds that exchanging took where nobody was waited for.
  // REQUIRES: both finite and >= 0.
  void Add(double rows, double seconds);
  // Halves the weight of earlier steps.
  void Fade();
  // In [0, mean seconds / mean rows]; 0: too few steps, or of sizes too much alike for a fit.
  double seconds_per_row() const;

 private:
  double steps_ = 0, rows_ = 0, seconds_ = 0, rows_squared_ = 0, rows_seconds_ = 0;
};

}  // namespace switchyard::placement
