// Synthetic routing with known statistics: where policies are compared on the skew and the pattern that the Lina paper
// measured, with a best possible estimator to measure estimators against.
//
// A token has a domain, hidden, the same in all layers and for all tokens of a sequence.  In each layer its first
// choice has a popularity rank r, in pairs of equal popularity (2j, 2j + 1): rank to expert is a permutation of the
// layer, in which each domain exchanged some ranks.  From layer to layer the token
//   keeps its rank               with probability stay * (1 - partner)
//   goes to its pair's other one with probability stay * partner
//   draws a rank by popularity   otherwise.
// So every domain's popularity is the same in all layers, by rank; the last expert says something of the next one, and
// as the domain shows only in several layers together, a longer path says more.
// Where top_k > 1, further choices are drawn from the same distribution, without those already taken.
//
// Tuned exactly (not by drawing), by bisection:
//   skew        max / min popularity of a layer over all domains, mean over layers: 4.02 with 4 experts, 5.56 with 16
//               (scheduler/PAPERS.md, row LI-5)
//   pattern k   of the tokens that share a first choice in layer i, the share that goes to that group's k most frequent
//               ones in layer i + 1, mean over tokens and layers: 0.4194 for k = 1, 0.5459 for k = 2 (LI-6)
// With 4 experts and that skew, pattern 2 cannot be as low: two of four experts have 0.68 of the rows by themselves, so
// LI-6 is for 16 experts; `pattern_2 = 0` leaves it free.
// Pure: all randomness is the seeds', and the same seed draws the same on every machine with IEEE doubles.
// Does not do: token ids (drawn evenly from 0..999, they say nothing), drift of the popularity over layers.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/popularity/trace/routing_trace.h"

namespace switchyard {

struct RoutingChainOptions {
  popularity::RoutingShape shape = {.num_layers = 12, .num_experts = 16, .top_k = 1};  // E even, K <= E / 2
  // With these a token's path reports its domain well, and the pattern is still within reach: keeping the rank is 0.70
  // likely where one domain is known, and the best guess from the whole path finds 0.57 of the next experts.
  int num_domains = 16;
  double moved_share = 0.2;  // of the ranks that a domain exchanges in a layer; of less than two none moves
  double skew = 5.56;
  double pattern_1 = 0.4194;
  double pattern_2 = 0.5459;  // 0 = as it comes with partner = 0
  uint64_t seed = 1;          // of the permutations
};

struct ChainDraw {
  int64_t num_sequences = 0;
  int64_t sequence_tokens = 512;
  double domain_run = 4;  // sequences that follow each other in one domain, mean
  uint64_t seed = 1;
};

class RoutingChain {
 public:
  // InvalidArgument if an option is out of range, or if the figures cannot be reached; says what can.
  static absl::StatusOr<RoutingChain> Tuned(const RoutingChainOptions& options);

  // The figures of this chain, by calculation.
  double Skew() const;
  double Pattern(int k) const;
  double stay() const { return stay_; }
  double partner() const { return partner_; }

  // A trace of the model "chain" with sequences labelled "domain0"…, all prompt.
  popularity::RoutingTrace Draw(const ChainDraw& draw) const;

  // The distribution [E] of the token's first choice in `layer`, given its choices in all layers before: nobody who
  // knows no more of the token can do better (Bayes).  Of layer 0 the mean over the domains.
  // REQUIRES: nothing was dropped.
  void NextDistribution(const popularity::RoutingView& batch, int64_t t, int layer, absl::Span<double> next) const;
  // The same two layers ahead: given its choices before layer - 1 alone.  REQUIRES: layer >= 1.
  void SecondNextDistribution(const popularity::RoutingView& batch, int64_t t, int layer,
                              absl::Span<double> next) const;

 private:
  explicit RoutingChain(const RoutingChainOptions& options);
  void Permute();
  // Popularity by rank, falling geometrically over the pairs, the first `ratio` times the last.
  void SetPopularity(double ratio);
  void TuneSkew();
  void TunePattern();
  // Tokens that go from expert a to b between layers i and i + 1 if they keep their rank, take the partner's or draw.
  struct Joint {
    std::vector<double> keep, swap, draw;  // [E, E]
  };
  void BuildJoints();
  size_t RankOf(size_t domain, int layer, int expert) const;
  size_t ExpertAt(size_t domain, int layer, size_t rank) const;
  // How likely the token's choices before `layer` are in this domain, and the rank of the last of them.
  struct Past {
    double likelihood = 1;
    size_t rank = 0;
  };
  Past PastOf(const popularity::RoutingView& batch, int64_t t, int layer, size_t domain) const;
  // [E] by expert, of a token of the domain whose rank in the layer before was `rank`; of layer 0 by popularity.
  void Transition(size_t domain, int layer, size_t rank, absl::Span<double> next) const;

  RoutingChainOptions options_;
  double stay_ = 0, partner_ = 0;
  std::vector<double> popularity_;  // [E] by rank
  std::vector<int16_t> expert_at_;  // [D, L, E] by rank
  std::vector<int16_t> rank_of_;    // [D, L, E] by expert
  std::vector<Joint> joints_;       // [L - 1]
};

}  // namespace switchyard
