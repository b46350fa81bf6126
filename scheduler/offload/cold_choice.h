// Decides whether rows of an expert that is in no slot are computed where its weights are, at a price each time, or the
// expert is copied first, once at a higher price.
//
// Rent or buy: the expert is rented until its rents would add up to the copy's price, so that no more is paid than
// twice what the better of both would have cost.  Rents fade, by half every kHalfLife passes: an expert that is needed
// now and then is never copied for it.  Prices are the caller's, in any unit, of each expert as if it were alone.
// Thread-compatible.  Does not measure, nor know slots (cache_policy.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "scheduler/base/check.h"
#include "scheduler/offload/layer_plan.h"

namespace switchyard::offload {

class ColdChoice {
 public:
  static constexpr int kHalfLife = 64;

  // REQUIRES: num_keys >= 0.
  explicit ColdChoice(int num_keys) : paid_(static_cast<size_t>(num_keys)) {}

  // A pass over all layers begins.
  void BeginPass() { ++pass_; }
  // Whether the expert stays where it is: then the rent counts as paid, else all rents are forgotten.
  // REQUIRES: key in [0, num_keys); rent, price >= 0.
  bool StaysCold(ExpertKey key, double rent, double price) {
    SY_CHECK(key >= 0 && static_cast<size_t>(key) < paid_.size());
    SY_CHECK(rent >= 0 && price >= 0);
    Paid& paid = paid_[static_cast<size_t>(key)];
    const double faded = paid.rents * std::exp2(-static_cast<double>(pass_ - paid.pass) / kHalfLife);
    const bool stays = faded + rent < price;
    paid = {.rents = stays ? faded + rent : 0, .pass = pass_};
    return stays;
  }

 private:
  struct Paid {
    double rents = 0;
    int64_t pass = 0;  // up to which `rents` has faded
  };
  std::vector<Paid> paid_;  // [keys]
  int64_t pass_ = 0;
};

}  // namespace switchyard::offload
