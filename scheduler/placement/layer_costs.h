// The times that decisions about a layer compare, in picoseconds: of experts' products, and of copies.  The server
// measures them and puts them into each step's plan, so that all ranks have the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace switchyard::placement {

// 0 for less than nothing; a day and more counts as one.
inline int64_t Picoseconds(double seconds) { return std::llround(std::clamp(seconds, 0.0, 86400.0) * 1e12); }

struct LayerCosts {
  int64_t copy_ps = 0;  // to copy one expert into a slot; a device copies one after the other, devices at the same time
  int64_t weights_ps = 0;  // to read one expert's weights, which its rows cannot be faster than; 0: not known
  int64_t row_ps = 0;      // that one row more makes the busiest device later: compute and exchange
  bool operator==(const LayerCosts& other) const = default;

  // Returns the time of so many rows of one expert on one device; at most kMostOfExpert, so that 2^17 of them can be
  // added.
  static constexpr int64_t kMostOfExpert = INT64_MAX >> 17;
  int64_t OfExpert(int64_t rows) const {
    if (rows <= 0) return 0;
    const __int128 products = static_cast<__int128>(rows) * row_ps;
    return static_cast<int64_t>(std::min<__int128>(std::max<__int128>(weights_ps, products), kMostOfExpert));
  }
};

}  // namespace switchyard::placement
