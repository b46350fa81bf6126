#include "scheduler/popularity/popularity.h"

#include <algorithm>
#include <numeric>

#include "scheduler/base/check.h"

namespace switchyard::popularity {

int64_t TotalOf(absl::Span<const int64_t> popularity) {
  return std::accumulate(popularity.begin(), popularity.end(), int64_t{0});
}

Popularity FromCounts(absl::Span<const int64_t> counts) {
  Popularity popularity(counts.begin(), counts.end());
  for (int64_t& entry : popularity) entry *= kRow;
  return popularity;
}

Popularity ScaledTo(absl::Span<const int64_t> popularity, int64_t total) {
  SY_CHECK(!popularity.empty());
  SY_CHECK_GE(total, 0);
  const std::vector<int64_t> even(popularity.size(), 1);
  const int64_t sum = TotalOf(popularity);
  const absl::Span<const int64_t> shares = sum > 0 ? popularity : absl::MakeConstSpan(even);
  const int64_t of = sum > 0 ? sum : static_cast<int64_t>(even.size());
  Popularity scaled(shares.size());
  std::vector<__int128> remainder(shares.size());
  int64_t given = 0;
  for (size_t e = 0; e < shares.size(); ++e) {
    const __int128 product = static_cast<__int128>(shares[e]) * total;
    scaled[e] = static_cast<int64_t>(product / of);
    remainder[e] = product % of;
    given += scaled[e];
  }
  std::vector<int32_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return remainder[a] != remainder[b] ? remainder[a] > remainder[b] : a < b; });
  // Fewer units are left than experts have remainders.
  for (size_t i = 0; given < total; ++i, ++given) ++scaled[order[i]];
  return scaled;
}

std::vector<int32_t> TopExperts(absl::Span<const int64_t> popularity, int n) {
  std::vector<int32_t> order(popularity.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = std::clamp<int64_t>(n, 0, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    return popularity[a] != popularity[b] ? popularity[a] > popularity[b] : a < b;
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

bool SameTopExperts(absl::Span<const int64_t> a, absl::Span<const int64_t> b, int n) {
  SY_CHECK_EQ(a.size(), b.size());
  std::vector<int32_t> top_a = TopExperts(a, n), top_b = TopExperts(b, n);
  std::sort(top_a.begin(), top_a.end());
  std::sort(top_b.begin(), top_b.end());
  return top_a == top_b;
}

}  // namespace switchyard::popularity
