// From lists to rows: tokens' predicted experts, best first, become the rows that an expert is expected to get.
//
// How often the expert at each place of a list is really among its token's experts is counted as it comes in, place by
// place; experts outside a token's list share what is left of its K.  Integers only.  Thread-compatible.  One object
// for a layer of a channel.  Does not do: chances that an expert is needed at all (need_forecast.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/offload/policies/cache_policy.h"

namespace switchyard {

class ForecastCalibration {
 public:
  // num_predicted M places of num_experts E experts; each token chooses top_k.  Before anything is counted places count
  // as right with falling chances.
  ForecastCalibration(int num_predicted, int num_experts, int top_k);

  // named [M, E]: tokens that name the expert at that place; num_tokens T in all.  rows [E], in 2^-20 (popularity.h).
  void ExpectedRows(absl::Span<const int32_t> named, int64_t num_tokens, absl::Span<int64_t> rows) const;
  // hits [M]: of num_tokens lists, those whose expert at that place was among its token's.
  void Count(absl::Span<const int64_t> hits, int64_t num_tokens);
  // The chance of place j, [0, kChance].
  int32_t PlaceChance(int j) const;

 private:
  int num_experts_;
  int top_k_;
  std::vector<int64_t> hits_;  // [M]
  std::vector<int64_t> seen_;  // [M]
};

}  // namespace switchyard
