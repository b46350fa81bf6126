// The estimators of live traffic, what each needs, and the profiles that they count: names and constants of
// LiveEstimates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "scheduler/popularity/path_profile.h"

namespace switchyard::popularity {

enum class LivePredictor : uint8_t {
  kMarginal,
  kPath,
  kToken,
  kGateAhead,  // calibrated, as is the next
  kProbe
};
inline constexpr int kNumLivePredictors = 5;
// "marginal", "gate_ahead", …: the metric's label.
absl::string_view NameOf(LivePredictor estimator);

// The ops that predict a token's experts of a coming layer.
enum class Predictor : uint8_t { kGateAhead, kProbe };
inline constexpr int kNumPredictors = 2;
inline constexpr int kMaxAhead = 2;
// The profile's channel: "gate_ahead", "probe", and two layers ahead "gate_ahead2", "probe2".
std::string ChannelOf(Predictor predictor, int ahead);

inline constexpr int kLivePathLength = 3;

struct LiveOptions {
  std::string model = {};  // the served weights' hash
  RoutingShape shape = {};
  Phase phase = Phase::kPrefill;
  int path_length = kLivePathLength;          // l, [1, kMaxPathLength]
  int num_predicted = 4;                      // M of each prediction
  int64_t profile_bytes = int64_t{32} << 20;  // of all profiles together
  int64_t halve_after_tokens = int64_t{1} << 18;
  int64_t first_full_passes = 64;  // then every full_every-th
  int64_t full_every = 8;
  int64_t counted_rows = 256;  // of a layer and pass, at most
  bool keeps_own = false;      // also counts apart what comes after Restore
  // The answer is Lina's: of each token's path the distribution of the next experts, masked to its top-k and
  // renormalised (section 5.2, Eq. (1)); marginal where no path is known yet.
  bool paper_estimate = false;
};

// The profiles that LiveEstimates counts, in a fixed order: paths, token ids, then the channels one and two ahead.
std::vector<ProfileIdentity> LiveProfiles(const LiveOptions& options);
ProfileLimits LiveLimits(const LiveOptions& options, ContextKind context);
// Where LiveProfiles has the profile of a channel: after those of paths and of token ids.
size_t ProfileOf(Predictor predictor, int ahead);

// The estimator that reads the predictor's predictions.
constexpr LivePredictor ReaderOf(Predictor predictor) {
  return predictor == Predictor::kGateAhead ? LivePredictor::kGateAhead : LivePredictor::kProbe;
}

}  // namespace switchyard::popularity
