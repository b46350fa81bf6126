// The chance that a layer needs an expert the next time it runs, from what it needed before: for layers that no
// forecast reaches.
//
// Each expert of each layer has its mean, over 1024 runs and more, and is described by three small numbers: passes
// since it was last needed, and how often it was needed lately (decayed by 1/4 a pass) and for long (1/64).  By how
// much experts so described were needed more often than their means is summed in a table, so the chances are right
// whatever the batch is, and the table learns how much the last tokens say (the same experts again, at batch 1) and how
// much the long run says. Integers only.  Thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/offload/policies/cache_policy.h"

namespace switchyard::offload {

class NeedHistory {
 public:
  // popularity [L * E] by profile, any scale: the first guess of how often an expert is needed.  top_k of its layer.
  NeedHistory(const OffloadShape& shape, absl::Span<const int64_t> popularity);

  // What the layer needed; counted against what was expected.
  void Observe(const LayerNeed& need);
  // The expert is to be expected as the others of its layer are, if it was needed less (where its rows were others').
  void Expect(ExpertKey key);
  // [0, kChance] that the expert's layer needs it when it runs next.
  int32_t NextChance(ExpertKey key) const { return next_[key]; }
  // Of its runs in the long run: halfway between the last 64 and all.
  int32_t LongChance(ExpertKey key) const { return (long_[key] + mean_[key]) / 2; }

 private:
  static constexpr int kAges = 8, kLevels = 12;
  struct Cell {
    int64_t more = 0;  // than the mean, summed
    int32_t seen = 0;
  };
  int CellOf(ExpertKey key) const;

  int num_experts_;
  std::array<Cell, kAges * kLevels * kLevels> table_;
  std::vector<int32_t> age_;    // [L * E] passes since the last need
  std::vector<int32_t> short_;  // [L * E]
  std::vector<int32_t> long_;   // [L * E]
  std::vector<int32_t> mean_;   // [L * E]
  std::vector<int32_t> runs_;   // [L] that mean_ is over, at most kMeanRuns
  std::vector<int32_t> next_;   // [L * E]
};

}  // namespace switchyard::offload
