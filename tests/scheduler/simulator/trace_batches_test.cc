#include "scheduler/simulator/trace_batches.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::simulator {
namespace {

using testing::ElementsAre;

// Token i of the trace, counted over its sequences, has id i, expert i mod 8 in layer 0 and 7 - i mod 8 in layer 1, and
// a channel that says 1 and i mod 8 of layer 1.
popularity::RoutingTrace Counting(const std::vector<int>& lengths) {
  popularity::RoutingTrace trace{.model = "m",
                                 .shape = {.num_layers = 2, .num_experts = 8, .top_k = 1},
                                 .channels = {{.name = "probe", .num_predicted = 2}},
                                 .sequences = {}};
  int16_t i = 0;
  for (const int length : lengths) {
    popularity::TraceSequence sequence;
    sequence.predictions.resize(1);
    for (int t = 0; t < length; ++t, ++i) {
      const auto expert = static_cast<int16_t>(i % 8);
      sequence.token_ids.push_back(i);
      sequence.experts.insert(sequence.experts.end(), {expert, static_cast<int16_t>(7 - expert)});
      sequence.predictions[0].insert(sequence.predictions[0].end(), {-1, -1, 1, expert});
    }
    trace.sequences.push_back(sequence);
  }
  return trace;
}

std::vector<int32_t> Ids(const popularity::RoutingView& view) {
  return {view.token_ids, view.token_ids + view.num_tokens};
}

TEST(TraceBatchesTest, PrefillTakesNeighbouringTokensOverTheEndsOfSequences) {
  const popularity::RoutingTrace trace = Counting({3, 0, 5, 3});
  TraceBatches batches(&trace, popularity::Phase::kPrefill, 4);
  ASSERT_EQ(batches.num_batches(), 2);
  batches.Load(1);
  EXPECT_THAT(Ids(batches.View()), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(popularity::CountsOf(batches.View(), 1), ElementsAre(1, 1, 1, 1, 0, 0, 0, 0));
  EXPECT_THAT(batches.Predictions(0, 1), ElementsAre(1, 4, 1, 5, 1, 6, 1, 7));
  EXPECT_THAT(batches.Predictions(0, 0), testing::Each(-1));
}

TEST(TraceBatchesTest, DecodeTakesOneTokenOfEachStream) {
  const popularity::RoutingTrace trace = Counting({3, 5, 3});
  TraceBatches batches(&trace, popularity::Phase::kDecode, 4);
  ASSERT_EQ(batches.num_batches(), 2);
  batches.Load(0);
  EXPECT_THAT(Ids(batches.View()), ElementsAre(0, 2, 4, 6));
  batches.Load(1);
  EXPECT_THAT(Ids(batches.View()), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(batches.View().Experts(2, 1), ElementsAre(2));
  EXPECT_EQ(TraceBatches(&trace, popularity::Phase::kDecode, 12).num_batches(), 0);
}

}  // namespace
}  // namespace switchyard::simulator
