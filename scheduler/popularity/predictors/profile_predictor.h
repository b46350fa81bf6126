// The estimate of a batch by a profile: the sum over its tokens of P(next expert | the token's path), or given its id.
//
// Three estimators of the family, by options:
//   marginal  max_length 0: every token the same, the layer's counts
//   path      l = max_length over a profile of paths (Lina, section 5.2)
//   token     max_length 1 over a profile of token ids: knows layer 0, too
// The whole distribution of each token is summed.  With `mask_to_top_k`, the paper's rule, only the k most probable
// experts of each token count, with their probabilities (scheduler/PAPERS.md, item 5); README.md compares the two.
// Borrows the profile and only reads it.  Thread-compatible.
#pragma once

#include <cstdint>

#include "scheduler/popularity/path_profile.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::popularity {

struct ProfilePredictorOptions {
  int max_length = 3;  // of the paths asked; more than the profile's length is cut to it
  int min_tokens = 2;  // that must have been seen of a path, else a shorter one is asked
  bool mask_to_top_k = false;
};

class ProfilePredictor {
 public:
  // REQUIRES: min_tokens >= 1, max_length >= 0; the profile outlives this.
  ProfilePredictor(const PathProfile* profile, ProfilePredictorOptions options);

  // [E] T * K * kRow in all; empty where nothing was counted, and of a path in layer 0.
  // REQUIRES: layers < layer of the batch are known.
  Popularity Estimate(const RoutingView& batch, int layer) const;
  // The profile's row that token t is estimated from.
  int32_t RowOf(const RoutingView& batch, int64_t t, int layer) const;

 private:
  bool KnowsLayer(const RoutingView& batch, int layer) const;

  const PathProfile* profile_;
  ProfilePredictorOptions options_;
};

}  // namespace switchyard::popularity
