#include "scheduler/popularity/count_table.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "scheduler/base/check.h"

namespace switchyard::popularity {
namespace {

constexpr uint32_t kMaxCount = std::numeric_limits<uint16_t>::max();

}  // namespace

CountTable::CountTable(int num_experts, int64_t max_rows)
    : num_experts_(static_cast<size_t>(num_experts)), max_rows_(max_rows) {
  SY_CHECK_GE(num_experts, 1);
  SY_CHECK_GE(max_rows, 4);
}

int64_t CountTable::BytesPerRow(int num_experts) {
  // An entry of the index is its key, its row and one byte of control at a load of 7/8 or less.
  constexpr int64_t kIndexBytes = 2 * (sizeof(ContextKey) + 8 + 1);
  return num_experts * int64_t{sizeof(uint16_t)} + int64_t{sizeof(ContextKey)} + int64_t{sizeof(uint32_t)} +
         kIndexBytes;
}

int32_t CountTable::Find(ContextKey key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? kNoRow : found->second;
}

absl::Span<const uint16_t> CountTable::counts(int32_t row) const {
  return absl::MakeConstSpan(counts_).subspan(static_cast<size_t>(row) * num_experts_, num_experts_);
}

size_t CountTable::RowFor(ContextKey key) {
  const auto [found, is_new] = index_.try_emplace(key, static_cast<int32_t>(keys_.size()));
  if (is_new) {
    keys_.push_back(key);
    totals_.push_back(0);
    counts_.resize(counts_.size() + num_experts_);
  }
  return static_cast<size_t>(found->second);
}

void CountTable::HalveRow(size_t row) {
  uint32_t total = 0;
  for (size_t e = 0; e < num_experts_; ++e) total += counts_[row * num_experts_ + e] /= 2;
  totals_[row] = total;
}

void CountTable::Add(ContextKey key, absl::Span<const int16_t> experts) {
  if (std::all_of(experts.begin(), experts.end(), [](int16_t expert) { return expert < 0; })) return;
  if (num_rows() >= max_rows_ && !index_.contains(key)) EvictTo(max_rows_ - max_rows_ / 4);
  const size_t row = RowFor(key);
  for (const int16_t expert : experts) {
    if (expert < 0) continue;
    uint16_t& count = counts_[row * num_experts_ + static_cast<size_t>(expert)];
    if (count == kMaxCount) HalveRow(row);
    ++count;
    ++totals_[row];
  }
}

void CountTable::AddRow(ContextKey key, absl::Span<const uint16_t> counts) {
  SY_CHECK_EQ(counts.size(), num_experts_);
  const size_t row = RowFor(key);
  const auto sum_of = [&](size_t e) { return uint32_t{counts[e]} + counts_[row * num_experts_ + e]; };
  bool too_large = false;
  for (size_t e = 0; e < num_experts_; ++e) too_large |= sum_of(e) > kMaxCount;
  uint32_t total = 0;
  for (size_t e = 0; e < num_experts_; ++e) {
    counts_[row * num_experts_ + e] = static_cast<uint16_t>(too_large ? sum_of(e) / 2 : sum_of(e));
    total += counts_[row * num_experts_ + e];
  }
  totals_[row] = total;
}

void CountTable::EvictToLimit() {
  if (num_rows() > max_rows_) EvictTo(max_rows_);
}

void CountTable::Merge(const CountTable& other) {
  SY_CHECK_EQ(num_experts_, other.num_experts_);
  for (const int32_t row : other.RowsByKey()) AddRow(other.key(row), other.counts(row));
  EvictToLimit();
}

void CountTable::Halve() {
  std::vector<bool> kept(keys_.size());
  for (size_t row = 0; row < keys_.size(); ++row) {
    HalveRow(row);
    kept[row] = totals_[row] > 0;
  }
  Compact(kept);
}

void CountTable::EvictTo(int64_t keep) {
  std::vector<int32_t> order(keys_.size());
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + keep, order.end(),
                   [&](int32_t a, int32_t b) { return total(a) != total(b) ? total(a) > total(b) : key(a) < key(b); });
  std::vector<bool> kept(keys_.size());
  for (int64_t i = 0; i < keep; ++i) kept[static_cast<size_t>(order[static_cast<size_t>(i)])] = true;
  Compact(kept);
}

void CountTable::Compact(const std::vector<bool>& kept) {
  size_t end = 0;
  for (size_t row = 0; row < keys_.size(); ++row) {
    if (!kept[row]) {
      index_.erase(keys_[row]);
      continue;
    }
    if (row != end) {
      keys_[end] = keys_[row];
      totals_[end] = totals_[row];
      std::copy_n(counts_.begin() + static_cast<int64_t>(row * num_experts_), num_experts_,
                  counts_.begin() + static_cast<int64_t>(end * num_experts_));
      index_[keys_[end]] = static_cast<int32_t>(end);
    }
    ++end;
  }
  keys_.resize(end);
  totals_.resize(end);
  counts_.resize(end * num_experts_);
}

std::vector<int32_t> CountTable::RowsByKey() const {
  std::vector<int32_t> rows(keys_.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  return rows;
}

}  // namespace switchyard::popularity
