// How many rows of a batch each expert of one layer gets: as counted after its gate, or as estimated before it.
//
// A row is one (token, choice): T tokens of top_k = K are T * K rows.  Fixed point, so that sums do not depend on their
// order, and ranks decide alike from them.
// Pure functions over spans [E]; entries are >= 0.  Does not estimate (predictors/).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::popularity {

// One row.  A sum stays below 2^63 for any batch of less than 2^42 rows.
inline constexpr int64_t kRow = int64_t{1} << 20;

// [E] units of 1 / kRow row.
using Popularity = std::vector<int64_t>;

int64_t TotalOf(absl::Span<const int64_t> popularity);

// counts [E] whole rows as a popularity.
Popularity FromCounts(absl::Span<const int64_t> counts);

// The same shares of another total: floor and, by largest remainder, ties to the smaller id, exactly `total` in all.
// Where all are zero every expert gets an equal share.  REQUIRES: total >= 0; E >= 1.
Popularity ScaledTo(absl::Span<const int64_t> popularity, int64_t total);

// The n most popular experts, most popular first, ties to the smaller id.  n is cut to E.
std::vector<int32_t> TopExperts(absl::Span<const int64_t> popularity, int n);

// Whether the sets (not the order) of the n most popular experts are equal: the paper's accuracy with n = 2 * top_k
// (Lina, section 5.2; sets, as scheduler/PAPERS.md, item 7, reads it).
bool SameTopExperts(absl::Span<const int64_t> a, absl::Span<const int64_t> b, int n);

}  // namespace switchyard::popularity
