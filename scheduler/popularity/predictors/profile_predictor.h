// What a profile says of a batch: the sum over its tokens of P(next expert | the token's path), or given its id.
//
// Three estimators of the family, by options:
//   marginal  max_length 0: every token the same, the layer's counts
//   path      l = max_length over a profile of paths (Lina, section 5.2)
//   token     max_length 1 over a profile of token ids: knows layer 0, too
// The whole distribution of each token is summed.  `mask_to_top_k` is the paper's rule in its place: of each token only
// the k most probable experts count, with their probabilities (scheduler/PAPERS.md, item 5).  It is for comparison: on
// the demo model's traces, l = 3, it makes the total-variation distance at batches of 32 / 2048 tokens 0.20 / 0.08
// where the sum has 0.18 / 0.05, because what a token's less probable experts get is not noise in a sum over tokens.
// Borrows the profile and only reads it: whoever owns it counts (PathProfile::Observe), once, however many estimators
// look at it; Observe does nothing.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/popularity/path_profile.h"
#include "scheduler/popularity/predictors/load_predictor.h"

namespace switchyard::popularity {

struct ProfilePredictorOptions {
  std::string name = "path";
  int max_length = 3;  // of the paths asked; more than the profile's length is cut to it
  // Tokens that must have been seen of a path, else a shorter one is asked (README.md has the figures).
  int min_tokens = 2;
  bool mask_to_top_k = false;
};

class ProfilePredictor : public TokenPredictor {
 public:
  // REQUIRES: min_tokens >= 1, max_length >= 0; the profile outlives this.
  ProfilePredictor(const PathProfile* profile, ProfilePredictorOptions options);

  absl::string_view name() const override { return options_.name; }
  // False where nothing was counted, and of a path in layer 0.
  bool Estimate(const RoutingView& batch, int layer, absl::Span<int64_t> popularity) const override;
  void Observe(const RoutingView& batch, int layer) override;
  // A token's most probable experts; none beyond those that its row has counts of.
  bool Predict(const RoutingView& batch, int layer, int num_predicted, absl::Span<int16_t> predicted) const override;

 private:
  bool KnowsLayer(const RoutingView& batch, int layer) const;
  int32_t RowOf(const RoutingView& batch, int64_t t, int layer) const;

  const PathProfile* profile_;
  ProfilePredictorOptions options_;
};

}  // namespace switchyard::popularity
