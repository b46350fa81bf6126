#include "tests/lab/offload/offload_workload.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Two layers of four experts, top-1; token t of sequence s goes to experts (s, t % 4), which the channel predicts.
popularity::RoutingTrace Trace() {
  popularity::RoutingTrace trace{.model = "weights",
                                 .shape = {.num_layers = 2, .num_experts = 4, .top_k = 1},
                                 .channels = {{.name = "probe", .num_predicted = 2}},
                                 .sequences = {}};
  for (int16_t s = 0; s < 2; ++s) {
    popularity::TraceSequence sequence;
    sequence.predictions.emplace_back();
    for (int16_t t = 0; t < 3 + s; ++t) {
      sequence.token_ids.push_back(t);
      const auto second = static_cast<int16_t>(t % 4);
      sequence.experts.insert(sequence.experts.end(), {s, second});
      // Of layer 0 nothing is predicted.
      sequence.predictions[0].insert(sequence.predictions[0].end(), {-1, -1, second, static_cast<int16_t>(3 - second)});
    }
    trace.sequences.push_back(std::move(sequence));
  }
  return trace;
}

TEST(OffloadWorkloadTest, LanesOfADecodeGoOnWithTheNextSequence) {
  const absl::StatusOr<OffloadWorkload> workload = CutWorkload(Trace(), {.batch = 2, .max_passes = 4});
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_EQ(workload->tokens, 8);
  ASSERT_EQ(workload->steps.size(), 8u);
  // Passes 0 to 2: token 0, 1, 2 of both sequences; then lane 0 begins the first sequence anew.
  EXPECT_THAT(workload->steps[0].rows, ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(workload->steps[1].rows, ElementsAre(2, 0, 0, 0));
  EXPECT_THAT(workload->steps[5].rows, ElementsAre(0, 0, 2, 0));
  EXPECT_THAT(workload->steps[6].rows, ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(workload->steps[7].rows, ElementsAre(1, 0, 0, 1));
  const NeedSequence needs = workload->Needs();
  EXPECT_THAT(needs[6], ElementsAre(0, 1));
  EXPECT_THAT(needs[7], ElementsAre(4, 7));
}

TEST(OffloadWorkloadTest, PassesOfAPrefillAreNeighboursOfOneSequence) {
  const absl::StatusOr<OffloadWorkload> workload = CutWorkload(Trace(), {.prefill_tokens = 2, .max_passes = 5});
  ASSERT_TRUE(workload.ok()) << workload.status();
  // Of 3 tokens 2 and 1; of 4 tokens 2 and 2; then anew.
  EXPECT_EQ(workload->tokens, 2 + 1 + 2 + 2 + 2);
  EXPECT_THAT(workload->steps[1].rows, ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(workload->steps[3].rows, ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(workload->steps[7].rows, ElementsAre(0, 0, 1, 1));
}

TEST(OffloadWorkloadTest, AForecastStandsWhereItWasMade) {
  const absl::StatusOr<OffloadWorkload> workload =
      CutWorkload(Trace(), {.batch = 1, .max_passes = 200, .one_ahead = "probe"});
  ASSERT_TRUE(workload.ok()) << workload.status();
  for (size_t step = 0; step < workload->steps.size(); ++step) {
    const bool reported = step % 2 == 0;  // after layer 0, of layer 1
    EXPECT_EQ(workload->steps[step].forecast[0].size(), reported ? 4u : 0u) << step;
    EXPECT_TRUE(workload->steps[step].forecast[1].empty());
  }
  // The first place was always right, the second never.
  const std::vector<int32_t>& chance = workload->steps[workload->steps.size() - 2].forecast[0];
  const std::vector<int32_t>& rows = workload->steps[workload->steps.size() - 1].rows;
  for (size_t e = 0; e < 4; ++e) {
    EXPECT_TRUE(rows[e] > 0 ? chance[e] > offload::kChance * 9 / 10 : chance[e] < offload::kChance / 10)
        << e << " " << chance[e];
  }
}

TEST(OffloadWorkloadTest, ATextIsAPromptAndThenTokenByToken) {
  const absl::StatusOr<OffloadWorkload> workload =
      CutWorkload(Trace(), {.prompt_tokens = 3, .decoded_tokens = 1, .max_passes = 5});
  ASSERT_TRUE(workload.ok()) << workload.status();
  // Half of 3 tokens and one more; half of 4 tokens and one more; then anew.
  EXPECT_EQ(workload->tokens, 2 + 1 + 2 + 1 + 2);
  EXPECT_THAT(workload->steps[1].rows, ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(workload->steps[3].rows, ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(workload->steps[4].rows, ElementsAre(0, 2, 0, 0));
  EXPECT_THAT(workload->steps[7].rows, ElementsAre(0, 0, 1, 0));
}

TEST(OffloadWorkloadTest, WhatTheTraceLacksIsNamed) {
  EXPECT_THAT(std::string(CutWorkload(Trace(), {.two_ahead = "probe2"}).status().message()),
              HasSubstr("the trace has no channel \"probe2\""));
  popularity::RoutingTrace none = Trace();
  none.sequences.clear();
  EXPECT_THAT(std::string(CutWorkload(none, {}).status().message()), HasSubstr("no tokens"));
}

TEST(OffloadWorkloadTest, MarginalRowsCountTheWholeTrace) {
  EXPECT_THAT(MarginalRows(Trace()), ElementsAre(3, 4, 0, 0, 2, 2, 2, 1));
}

}  // namespace
}  // namespace switchyard
