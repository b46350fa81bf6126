// Whether rows of an expert that is in no slot are computed where its weights are, each time at its price, or the
// expert is copied first, once at a higher price.
//
// Rent or buy: it is rented while that costs less than the copy, until the rents would add up to the copy's price; so
// what is paid is never more than twice what the better of both would have cost, known beforehand.  Rents fade, by half
// every kHalfLife passes: an expert that is asked for now and then is never copied for it.
// Prices are the caller's, in any unit.  Thread-compatible.  Does not do: measuring, whether a slot is free or whose it
// is (cache_policy.h), several experts at once: what each costs is taken as if it were alone.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/offload/layer_plan.h"

namespace switchyard::offload {

class ColdChoice {
 public:
  static constexpr int kHalfLife = 64;

  // REQUIRES: num_keys >= 0.
  explicit ColdChoice(int num_keys) : paid_(static_cast<size_t>(num_keys)) {}

  // A pass over all layers begins.
  void BeginPass() { ++pass_; }
  // Whether it stays where it is: then the rent counts as paid, else nothing does any more.
  // REQUIRES: key in [0, num_keys); rent, price >= 0.
  bool StaysCold(ExpertKey key, double rent, double price);

 private:
  struct Paid {
    double rents = 0;
    int64_t pass = 0;  // as of
  };
  std::vector<Paid> paid_;  // [keys]
  int64_t pass_ = 0;
};

}  // namespace switchyard::offload
