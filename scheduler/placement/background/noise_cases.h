// Draws of what a layer's rows may be in the next window, from what was counted in this one.
//
// An expert's rows are uncertain by counting (1 / sqrt(rows counted), this window and the next) and by traffic.  Counts
// shrink towards the mean as far as counting explains the differences; draws come in pairs around that, one up where
// the other is down.  Pure: the seed is a parameter; the same on every machine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/placement/route/split_cases.h"

namespace switchyard::placement {

struct PhaseRows {
  absl::Span<const int64_t> rows;  // [E] in 1 / kRow
  double weight = 0;               // of the phase; those of phases without rows do not count
};

// Relative standard deviation of an expert's rows in the next window, at most 1.  rows in 1 / kRow.
double RelativeError(int64_t rows, double traffic_noise);

// draws (even) cases a phase, each scaled so that the mean device has 1.  REQUIRES: a phase with rows and weight.
std::shared_ptr<const CaseRows> DrawCases(const std::vector<PhaseRows>& phases, int num_devices, double traffic_noise,
                                          int draws, uint64_t seed);

}  // namespace switchyard::placement
