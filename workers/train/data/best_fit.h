// Best-fit-decreasing packing of documents into windows.  Pure.
//
// The longest piece is laid first.  Each goes into the window with the least room that is enough for it, or into a new
// one.  The order is part of a job's bits: a job goes on with the windows that it began with.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::train {

// Returns the pieces of each window, as indexes into `rows`.  rows: of each piece, in [1, length].  seed: orders pieces
// of the same length, and so which of them share windows.
std::vector<std::vector<int32_t>> PackBestFit(absl::Span<const int32_t> rows, int64_t length, uint64_t seed);

}  // namespace switchyard::train
