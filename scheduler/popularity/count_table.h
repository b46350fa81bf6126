// How often each expert followed each context, for one layer, in bounded memory.
//
// A context is what a prediction is conditioned on: the path of experts behind a token, or its id (path_profile.h makes
// the keys).  Each has a row of E counts.  Keys are exact: two contexts never share a row.
// Bounded: a new context that finds the table full evicts the quarter of the rows with the smallest totals, ties to the
// larger key.  A count has 16 bits; a row with one that would overflow is halved, which keeps its shares.
// Deterministic.  Merging is associative and commutative as long as nothing was evicted and no count reached 2^16.
// Thread-compatible.
#pragma once

#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace switchyard::popularity {

struct ContextKey {
  uint64_t high = 0, low = 0;
  auto operator<=>(const ContextKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const ContextKey& key) {
    return H::combine(std::move(hash), key.high, key.low);
  }
};

class CountTable {
 public:
  static constexpr int32_t kNoRow = -1;

  // REQUIRES: num_experts >= 1; max_rows >= 4.
  CountTable(int num_experts, int64_t max_rows);

  // With the row's place in the index.
  static int64_t BytesPerRow(int num_experts);

  // One more of each of `experts` after `key`; -1 (dropped) is passed over.
  void Add(ContextKey key, absl::Span<const int16_t> experts);
  // Adds a whole row of counts [E], also beyond max_rows: EvictToLimit afterwards.
  void AddRow(ContextKey key, absl::Span<const uint16_t> counts);
  // Adds all rows of `other`, then evicts down to max_rows.  REQUIRES: as many experts.
  void Merge(const CountTable& other);
  // Keeps the max_rows rows with the largest totals, ties to the smaller key.
  void EvictToLimit();
  // Halves every count, rounded down; rows of nothing go.
  void Halve();

  int64_t num_rows() const { return static_cast<int64_t>(keys_.size()); }
  int64_t max_rows() const { return max_rows_; }
  // kNoRow if the context is unknown.  Rows are valid until the next change.
  int32_t Find(ContextKey key) const;
  ContextKey key(int32_t row) const { return keys_[static_cast<size_t>(row)]; }
  // [E]
  absl::Span<const uint16_t> counts(int32_t row) const;
  // The sum of the row's counts.
  uint32_t total(int32_t row) const { return totals_[static_cast<size_t>(row)]; }
  // Rows by rising key: the order of a file, which must not depend on the order of arrival.
  std::vector<int32_t> RowsByKey() const;

 private:
  size_t RowFor(ContextKey key);
  // Keeps the `keep` rows with the largest totals, ties to the smaller key.
  void EvictTo(int64_t keep);
  // Keeps the rows for which kept[row].
  void Compact(const std::vector<bool>& kept);
  void HalveRow(size_t row);

  size_t num_experts_;
  int64_t max_rows_;
  absl::flat_hash_map<ContextKey, int32_t> index_;  // never iterated: its order differs from run to run
  std::vector<ContextKey> keys_;                    // [rows]
  std::vector<uint32_t> totals_;                    // [rows]
  std::vector<uint16_t> counts_;                    // [rows, E]
};

}  // namespace switchyard::popularity
