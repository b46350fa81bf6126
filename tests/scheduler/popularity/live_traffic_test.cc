// A profile of other traffic than what comes: switched off, and back when it was counted anew.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/popularity/predictors/predictor_monitor.h"
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

// Prefills of 256 tokens; marginal counts them, path reads `profile`.  Returns what the monitor said.
std::string Serve(const RoutingTrace& trace, const PathProfile& profile, PathProfile* live, PredictorMonitor* monitor) {
  const ProfilePredictor marginal(live, {.max_length = 0}), path(&profile, {});
  simulator::TraceBatches batches(&trace, Phase::kPrefill, 256);
  std::string said;
  for (int64_t b = 0; b < batches.num_batches(); ++b) {
    batches.Load(b);
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      std::vector<int64_t> distances;
      const std::vector<int64_t> actual = CountsOf(batches.View(), layer);
      for (const ProfilePredictor* estimator : {&marginal, &path}) {
        Popularity estimate;
        if (monitor->Wants(layer, static_cast<int>(distances.size()))) {
          estimate = estimator->Estimate(batches.View(), layer);
        }
        distances.push_back(estimate.empty() ? PredictorMonitor::kNoEstimate : DistanceOf(estimate, actual));
      }
      monitor->Add(layer, distances);
      live->Observe(batches.View(), layer);
    }
    for (const std::string& report : monitor->TakeReports()) said += report + "\n";
  }
  return said;
}

TEST(LiveTrafficTest, AProfileOfOtherTrafficIsSwitchedOffAndComesBackWhenItWasCountedAnew) {
  const RoutingTrace before = Traffic(1, 400), now = Traffic(2, 400);
  PathProfile old = Empty(), live = Empty(), fresh = Empty();
  Count(before, &old);
  Count(now, &fresh);
  PredictorMonitor monitor({"marginal", "path"}, kShape.num_layers, {.wait_batches = 40});
  const std::string off = Serve(now, old, &live, &monitor);
  for (int layer = 1; layer < kShape.num_layers; ++layer) {
    EXPECT_TRUE(absl::StrContains(off, absl::StrCat("estimator path is off in layer ", layer))) << off;
    EXPECT_EQ(monitor.Best(layer), 0);
  }
  EXPECT_FALSE(absl::StrContains(off, "layer 0")) << off;  // where it has no estimate
  EXPECT_FALSE(absl::StrContains(off, "on again")) << off;
  std::string on;
  for (int i = 0; i < 4; ++i) on += Serve(now, fresh, &live, &monitor);
  // Into layer 1 a path is one layer long, which is not clearly better than marginal on these chains.
  for (int layer = 2; layer < kShape.num_layers; ++layer) {
    EXPECT_TRUE(absl::StrContains(on, absl::StrCat("estimator path is on again in layer ", layer))) << on;
    EXPECT_EQ(monitor.Best(layer), 1);
  }
}

}  // namespace
}  // namespace switchyard::popularity
