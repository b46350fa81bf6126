// A profile of other traffic than what comes does not decide, and does when it was counted anew.
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/popularity/predictors/best_predictor.h"
#include "scheduler/popularity/predictors/profile_predictor.h"
#include "scheduler/simulator/trace_batches.h"
#include "tests/lab/routing/routing_chain.h"

namespace switchyard::popularity {
namespace {

constexpr RoutingShape kShape{.num_layers = 4, .num_experts = 16, .top_k = 1};

RoutingTrace Traffic(uint64_t permutations, int64_t sequences) {
  absl::StatusOr<RoutingChain> chain = RoutingChain::Tuned({.shape = kShape, .seed = permutations});
  EXPECT_TRUE(chain.ok()) << chain.status();
  return chain->Draw({.num_sequences = sequences, .sequence_tokens = 64, .domain_run = 1});
}

PathProfile Empty() { return PathProfile({.model = "chain", .shape = kShape}, {}); }

void Count(const RoutingTrace& trace, PathProfile* profile) {
  for (const TraceSequence& sequence : trace.sequences)
    for (int layer = 0; layer < kShape.num_layers; ++layer)
      profile->Observe(ViewOf(trace, sequence, 0, sequence.num_tokens()), layer);
}

// Prefills of 256 tokens; marginal counts them, path reads `profile`.
void Serve(const RoutingTrace& trace, const PathProfile& profile, PathProfile* live, BestPredictor* best) {
  const ProfilePredictor marginal(live, {.max_length = 0}), path(&profile, {});
  simulator::TraceBatches batches(&trace, Phase::kPrefill, 256);
  for (int64_t b = 0; b < batches.num_batches(); ++b) {
    batches.Load(b);
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      std::vector<int64_t> distances;
      const std::vector<int64_t> actual = CountsOf(batches.View(), layer);
      for (const ProfilePredictor* estimator : {&marginal, &path}) {
        const Popularity estimate = estimator->Estimate(batches.View(), layer);
        distances.push_back(estimate.empty() ? BestPredictor::kNoEstimate : DistanceOf(estimate, actual));
      }
      best->Add(layer, distances);
      live->Observe(batches.View(), layer);
    }
  }
}

TEST(LiveTrafficTest, AProfileOfOtherTrafficDoesNotDecideAndOneThatWasCountedAnewDoes) {
  const RoutingTrace before = Traffic(1, 400), now = Traffic(2, 400);
  PathProfile old = Empty(), live = Empty(), fresh = Empty();
  Count(before, &old);
  Count(now, &fresh);
  BestPredictor best(kShape.num_layers, 2);
  Serve(now, old, &live, &best);
  for (int layer = 0; layer < kShape.num_layers; ++layer) EXPECT_EQ(best.Of(layer), 0);
  for (int i = 0; i < 4; ++i) Serve(now, fresh, &live, &best);
  // Into layer 1 a path is one layer long, which is not clearly better than marginal on these chains.
  for (int layer = 2; layer < kShape.num_layers; ++layer) EXPECT_EQ(best.Of(layer), 1);
}

}  // namespace
}  // namespace switchyard::popularity
