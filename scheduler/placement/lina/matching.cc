#include "scheduler/placement/lina/matching.h"

#include <algorithm>
#include <limits>

#include "scheduler/base/check.h"

namespace switchyard::placement {
namespace {

// Index n stands for "none": the column from which a row's path starts, and the row of a column that is free.
struct Assignment {
  Assignment(absl::Span<const int64_t> costs, int size)
      : cost(costs), n(size), row_potential(n + 1), column_potential(n + 1), row_of(n + 1, n) {}

  // Gives `row` a column by the shortest alternating path over reduced costs.
  void Augment(int row) {
    constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
    std::vector<int64_t> distance(n, kFar);
    std::vector<int> before(n, n);
    std::vector<bool> done(n + 1, false);
    int column = n;
    row_of[n] = row;
    while (row_of[column] != n) {
      done[column] = true;
      const int from = row_of[column];
      int64_t step = kFar;
      int next = n;
      for (int c = 0; c < n; ++c) {
        if (done[c]) continue;
        const int64_t reduced = cost[static_cast<size_t>(from) * n + c] - row_potential[from] - column_potential[c];
        if (reduced < distance[c]) distance[c] = reduced, before[c] = column;
        if (distance[c] < step) step = distance[c], next = c;
      }
      for (int c = 0; c <= n; ++c) {
        if (done[c]) {
          row_potential[row_of[c]] += step;
          column_potential[c] -= step;
        } else {
          distance[c] -= step;
        }
      }
      column = next;
    }
    while (column != n) {
      row_of[column] = row_of[before[column]];
      column = before[column];
    }
    row_of[n] = n;
  }

  absl::Span<const int64_t> cost;  // [n, n]
  int n;
  std::vector<int64_t> row_potential, column_potential;
  std::vector<int> row_of;  // of each column
};

int64_t Arrivals(const std::vector<int32_t>& before, const std::vector<int32_t>& now) {
  return std::count_if(now.begin(), now.end(), [&](int32_t expert) {
    return expert != kEmptySlot && std::find(before.begin(), before.end(), expert) == before.end();
  });
}

}  // namespace

std::vector<int> MinCostAssignment(absl::Span<const int64_t> cost, int n) {
  SY_CHECK_EQ(cost.size(), static_cast<size_t>(n) * n);
  Assignment assignment(cost, n);
  for (int row = 0; row < n; ++row) assignment.Augment(row);
  std::vector<int> column_of(n);
  for (int column = 0; column < n; ++column) column_of[assignment.row_of[column]] = column;
  return column_of;
}

Placement MatchDevices(const Placement& from, const Placement& to) {
  SY_CHECK_EQ(from.num_devices(), to.num_devices());
  const int devices = to.num_devices();
  std::vector<int64_t> cost;
  for (int role = 0; role < devices; ++role) {
    for (int device = 0; device < devices; ++device) cost.push_back(Arrivals(from.slots[device], to.slots[role]));
  }
  const std::vector<int> device_of = MinCostAssignment(cost, devices);
  Placement matched{.num_experts = to.num_experts, .slots = std::vector<std::vector<int32_t>>(devices)};
  for (int role = 0; role < devices; ++role) matched.slots[device_of[role]] = to.slots[role];
  return KeepSlots(from, matched);
}

}  // namespace switchyard::placement
