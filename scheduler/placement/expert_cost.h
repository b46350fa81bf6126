// What an expert's rows cost the rank that computes them, in seconds: its weights are read once, whatever the rows, and
// from some number of rows on products take longer than that.  Plain data.
#pragma once

#include <algorithm>
#include <cstdint>

namespace switchyard::placement {

struct ExpertCost {
  double weights_seconds = 0;  // to read the expert's weights
  double row_seconds = 0;      // of one row's products

  bool operator==(const ExpertCost& other) const = default;
  bool any() const { return weights_seconds > 0 || row_seconds > 0; }
  double Of(int64_t rows) const {
    return rows <= 0 ? 0 : std::max(weights_seconds, row_seconds * static_cast<double>(rows));
  }
};

}  // namespace switchyard::placement
