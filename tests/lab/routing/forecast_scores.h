// How right forecasts of routing were, as benchmarks and tests measure it (servers: estimate_score.h).
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard {

// Total-variation distance of the two shares, [0, 1]: half the sum of |share - share|.  0 if both are empty, 1 if one
// is.
double TotalVariation(absl::Span<const int64_t> a, absl::Span<const int64_t> b);

// How many of the batch's rows in `layer` were predicted among the first top_k of their tokens, and how many there are.
struct TokensFound {
  int64_t found = 0, rows = 0;
};
TokensFound CountFound(const popularity::RoutingView& batch, int layer, int num_predicted,
                       absl::Span<const int16_t> predicted);

}  // namespace switchyard
