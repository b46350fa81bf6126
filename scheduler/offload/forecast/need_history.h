// The chance that a layer needs an expert the next time it runs, from what it needed before: for layers that no
// forecast reaches.
//
// Where it is known how many experts a token needs (OffloadShape), chances are kept by the token: of a pass with many,
// a prompt's, the share of them that an expert gets says how likely the next tokens need it, not that one of them did.
// The layers to come have as many tokens as the gate that ran last; a pass to come is taken to have those of the
// smallest of the last few. An expert has its mean over 1024 runs and more, and is described by three small numbers:
// passes since it was last needed, and how often it was needed lately (decayed by 1/4 a pass) and for long (1/64).  A
// table sums by how much experts of each description were needed more often than their means.  So the chances are right
// whatever the batch is: the table learns how much the last tokens say (at batch 1: the same experts again), and how
// much the long run. Integers only.  Thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/offload/forecast/learned_chance.h"
#include "scheduler/offload/policies/cache_policy.h"

namespace switchyard::offload {

class NeedHistory {
 public:
  // popularity [L * E] by profile, any scale: the first guess of how often an expert is needed.
  NeedHistory(const OffloadShape& shape, absl::Span<const int64_t> popularity);

  // Counts what the layer needed against what was expected.
  void Observe(const LayerNeed& need);
  // Expects the expert as often as the others of its layer, if it was needed less (its rows were computed elsewhere).
  void Expect(ExpertKey key);
  // [0, kChance] that the expert's layer needs it when it runs next.
  int32_t NextChance(ExpertKey key) const {
    return OfAny(next_[key], key / num_experts_ > layer_ ? tokens_ : least_tokens_);
  }
  // The same in the long run: halfway between the last 64 runs and all.
  int32_t LongChance(ExpertKey key) const { return OfAny((long_[key] + mean_[key]) / 2, least_tokens_); }

 private:
  static constexpr int kAges = 8;
  static constexpr int kRecentPasses = 4;
  // The tokens of a pass with so many rows here.
  int32_t TokensOf(int64_t rows) const;
  // The chance that one of so many tokens needs what one of them needs with this chance.
  static int32_t OfAny(int32_t chance, int32_t tokens);
  int CellOf(ExpertKey key) const;

  int num_experts_, token_uses_;
  std::array<LearnedChance, kAges * kChanceLevels * kChanceLevels> table_;
  std::vector<int32_t> age_;    // [L * E] passes since the last need
  std::vector<int32_t> short_;  // [L * E]
  std::vector<int32_t> long_;   // [L * E]
  std::vector<int32_t> mean_;   // [L * E]
  std::vector<int32_t> runs_;   // [L] that mean_ is over, at most kMeanRuns
  std::vector<int32_t> next_;   // [L * E] by the token
  // Of the gate that ran last, and of the smallest of the last passes.
  int layer_ = 0;
  int32_t tokens_ = 1, least_tokens_ = 1;
  std::array<int32_t, kRecentPasses> recent_;  // tokens of passes, a ring
  int64_t num_passes_ = 0;
};

}  // namespace switchyard::offload
