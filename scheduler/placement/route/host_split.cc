#include "scheduler/placement/route/host_split.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::placement {

HostSplit::HostSplit(int rank, HostGroups groups, int32_t many_rows)
    : rank_(rank), groups_(std::move(groups)), many_rows_(many_rows), pieces_(groups_.owner_of.size()) {
  SY_CHECK(0 <= rank && rank < groups_.num_ranks() && many_rows >= 1);
  const int32_t here = groups_.host_of[static_cast<size_t>(rank)];
  for (int expert = 0; expert < groups_.num_experts(); ++expert) {
    is_here_.push_back(groups_.HostOf(expert) == here ? 1 : 0);
  }
  for (int32_t r = 0; r < groups_.num_ranks(); ++r) {
    const auto host = static_cast<size_t>(groups_.host_of[static_cast<size_t>(r)]);
    if (hosts_.size() <= host) hosts_.resize(host + 1);
    hosts_[host].push_back(r);
  }
  for (const int32_t r : hosts_[static_cast<size_t>(here)]) quotas_.push_back({.device = r});
  Begin({});
}

// Parts of what this rank has: what it keeps is the mean of its host, of what exceeds it the others get what they lack.
void HostSplit::Begin(absl::Span<const int32_t> rank_rows) {
  const auto rows_of = [&](int32_t rank) -> int64_t {
    return rank_rows.empty() ? 1 : rank_rows[static_cast<size_t>(rank)];
  };
  SY_CHECK(rank_rows.empty() || static_cast<int>(rank_rows.size()) == groups_.num_ranks());
  const auto ranks = static_cast<int64_t>(quotas_.size());
  int64_t all = 0, lacking = 0;
  for (const Quota& quota : quotas_) all += rows_of(quota.device);
  // In units of 1 / ranks rows.
  const auto lack_of = [&](int32_t rank) { return std::max<int64_t>(0, all - rows_of(rank) * ranks); };
  for (const Quota& quota : quotas_) lacking += lack_of(quota.device);
  const int64_t own = rows_of(rank_) * ranks, given = std::max<int64_t>(0, own - all);
  // What the givers of a host give in all is what the others lack.
  shares_ = std::max<int64_t>(1, own * lacking);
  for (Quota& quota : quotas_) quota.share = quota.device == rank_ ? 0 : given * lack_of(quota.device);
}

void HostSplit::TakeQuotas(absl::Span<const int32_t> counts) {
  int64_t many = 0;
  for (int expert = 0; expert < groups_.num_experts(); ++expert) {
    const int32_t rows = counts[static_cast<size_t>(expert)];
    if (IsMany(expert, rows)) many += rows;
  }
  int64_t left = many;
  for (Quota& quota : quotas_) {
    quota.rows = static_cast<int64_t>(static_cast<__int128>(many) * quota.share / shares_);
    if (quota.rows < many_rows_) quota.rows = 0;  // they would cost their receiver more than they save here
    left -= quota.rows;
  }
  for (Quota& quota : quotas_) {
    if (quota.device == rank_) quota.rows = left;
  }
}

void HostSplit::Put(int expert, int32_t device, int64_t rows) {
  if (rows == 0) return;
  std::vector<SplitPiece>& pieces = pieces_[static_cast<size_t>(expert)];
  for (SplitPiece& piece : pieces) {
    if (piece.device != device) continue;
    piece.rows += static_cast<int32_t>(rows);
    return;
  }
  pieces.push_back({device, static_cast<int32_t>(rows)});
}

// Owners first take rows of their experts; what is left goes where most quota is left.
void HostSplit::PlaceHere(absl::Span<const int32_t> counts) {
  TakeQuotas(counts);
  for (int expert = 0; expert < groups_.num_experts(); ++expert) {
    const int32_t rows = counts[static_cast<size_t>(expert)], owner = groups_.owner_of[static_cast<size_t>(expert)];
    if (is_here_[static_cast<size_t>(expert)] == 0) continue;
    if (!IsMany(expert, rows)) {
      Put(expert, owner, rows);
      continue;
    }
    for (Quota& quota : quotas_) {
      if (quota.device != owner) continue;
      const int64_t taken = std::min<int64_t>(rows, quota.rows);
      quota.rows -= taken;
      Put(expert, owner, taken);
    }
  }
  for (int expert = 0; expert < groups_.num_experts(); ++expert) {
    int64_t left = counts[static_cast<size_t>(expert)];
    if (!IsMany(expert, counts[static_cast<size_t>(expert)])) continue;
    for (const SplitPiece& piece : pieces_[static_cast<size_t>(expert)]) left -= piece.rows;
    while (left > 0) {
      const auto most = std::max_element(quotas_.begin(), quotas_.end(),
                                         [](const Quota& a, const Quota& b) { return a.rows < b.rows; });
      const int64_t taken = std::min(left, most->rows);
      SY_CHECK_GT(taken, 0);  // quotas sum to all rows of experts with many
      most->rows -= taken;
      left -= taken;
      Put(expert, most->device, taken);
    }
  }
}

void HostSplit::PlaceElsewhere(int expert, int32_t rows) {
  const int32_t owner = groups_.owner_of[static_cast<size_t>(expert)];
  const std::vector<int32_t>& ranks = hosts_[static_cast<size_t>(groups_.HostOf(expert))];
  const auto first = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), owner) - ranks.begin());
  const auto parts = std::clamp<int64_t>(rows / many_rows_, 1, static_cast<int64_t>(ranks.size()));
  for (int64_t part = 0; part < parts; ++part) {
    Put(expert, ranks[(first + static_cast<size_t>(part)) % ranks.size()],
        rows * (part + 1) / parts - rows * part / parts);
  }
}

SplitTable HostSplit::Split(absl::Span<const int32_t> counts) {
  SY_CHECK_EQ(static_cast<int>(counts.size()), groups_.num_experts());
  for (std::vector<SplitPiece>& pieces : pieces_) pieces.clear();
  PlaceHere(counts);
  for (int expert = 0; expert < groups_.num_experts(); ++expert) {
    if (is_here_[static_cast<size_t>(expert)] == 0) PlaceElsewhere(expert, counts[static_cast<size_t>(expert)]);
  }
  std::vector<int32_t> offsets(counts.size() * groups_.host_of.size() + 1, 0);
  std::vector<SplitPiece> all;
  const size_t begin = static_cast<size_t>(rank_) * counts.size();
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    std::vector<SplitPiece>& pieces = pieces_[expert];
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.device < b.device; });
    all.insert(all.end(), pieces.begin(), pieces.end());
    offsets[begin + expert + 1] = static_cast<int32_t>(all.size());
  }
  std::fill(offsets.begin() + static_cast<int64_t>(begin + counts.size()), offsets.end(),
            static_cast<int32_t>(all.size()));
  absl::StatusOr<SplitTable> table =
      SplitTable::FromPieces(groups_.num_ranks(), groups_.num_experts(), std::move(offsets), std::move(all));
  SY_CHECK(table.ok());
  return *std::move(table);
}

}  // namespace switchyard::placement
