#include "workers/train/step/row_keys.h"

#include <algorithm>

#include "workers/ops/dropout/counter_random.h"

namespace switchyard::train {

std::vector<uint64_t> RowKeysOf(const TrainRows& rows, uint64_t seed, int64_t step) {
  const uint64_t step_key = ops::StepKey(seed, step);
  const auto count = static_cast<int64_t>(rows.tokens.size());
  std::vector<uint64_t> keys(rows.tokens.size());
  int64_t begin = 0;
  auto next = rows.begins.begin();
  int64_t sequence = rows.first_sequence - (rows.begins.empty() ? 0 : 1);  // the first begin makes it the first
  for (int64_t t = 0; t < count; ++t) {
    if (!rows.packed) {
      sequence = rows.first_sequence + t / rows.length;
      begin = t - t % rows.length;
    }
    for (; rows.packed && next != rows.begins.end() && *next <= t; ++next) {
      ++sequence;  // (a window without rows has its place, too)
      begin = *next;
    }
    keys[t] = ops::RowKey(step_key, sequence, t - begin);
  }
  return keys;
}

}  // namespace switchyard::train
