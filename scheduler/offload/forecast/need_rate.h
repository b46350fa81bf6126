// The chance that a layer needs an expert the next time it runs, from what it needed before.
//
// Each expert has an exponential moving average of its rows per token: a token moves it by 1/32 of the difference, a
// prompt of n tokens by as much as n tokens would.  Batches as large as the last gate's are taken to follow.  Where it
// is not known how many experts a token needs (OffloadShape), a pass counts as one token.
// Integers only.  Thread-compatible; copyable.  Knows nothing of the order of needs (need_path.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/offload/policies/cache_policy.h"

namespace switchyard::offload {

class NeedRate {
 public:
  // popularity [L * E] by profile, any scale: the first rates are its shares.
  NeedRate(const OffloadShape& shape, absl::Span<const int64_t> popularity);

  // Counts what the layer needed.
  void Observe(const LayerNeed& need);
  // [0, kChance] that the expert's layer needs it when it runs next.
  int32_t Chance(ExpertKey key) const { return OfAny(rate_[key], tokens_); }

 private:
  // The chance that one of so many tokens needs what one of them needs with this chance.
  static int32_t OfAny(int32_t chance, int32_t tokens);

  int num_experts_, token_uses_;
  std::vector<int32_t> rate_;  // [L * E] rows per token, times kChance
  int32_t tokens_ = 1;         // of the gate that ran last
};

}  // namespace switchyard::offload
