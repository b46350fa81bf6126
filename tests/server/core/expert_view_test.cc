#include "server/expert_view.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ExpertViewTest : public testing::Test {
 protected:
  ExpertViewTest() {
    EXPECT_TRUE(census_.Add(Phase::kPrefill, {6, 0, 0, 2, 2, 2, 2, 2}).ok());
    EXPECT_TRUE(census_.Add(Phase::kDecode, {0, 0, 4, 0, 1, 1, 1, 1}).ok());
  }
  // Both layers.
  static ResidencyView At(const Placement& placement) {
    ResidencyView view;
    view.layers =
        std::make_shared<const std::vector<LayerResidency>>(2, LayerResidency{placement, std::vector<bool>(4, false)});
    return view;
  }
  ExpertCensus census_{{.num_layers = 2, .num_experts = 4, .top_k = 2}, 1000};
};

TEST_F(ExpertViewTest, TellsRowsPlacesAndSkew) {
  const auto view = DescribeExperts({}, census_, At(ContiguousPlacement(4, 2, 0)), absl::InfinitePast());
  EXPECT_EQ(view.num_workers(), 2);
  EXPECT_EQ(view.prefill_tokens(), 4);
  EXPECT_EQ(view.decode_tokens(), 2);
  ASSERT_EQ(view.layers_size(), 2);
  const v1::LayerExperts& first = view.layers(0);
  EXPECT_EQ(first.experts(0).prefill_rows(), 6);
  EXPECT_EQ(first.experts(2).decode_rows(), 4);
  EXPECT_THAT(first.experts(3).workers(), ElementsAre(1));
  EXPECT_DOUBLE_EQ(first.busiest_expert_over_mean(), 2.0);  // 6 of 12 over 4 experts
  EXPECT_DOUBLE_EQ(first.busiest_worker_over_mean(), 1.0);  // 6 and 6
  EXPECT_DOUBLE_EQ(view.layers(1).busiest_expert_over_mean(), 1.0);
}

// Rows of replicas are split as they would be.
TEST_F(ExpertViewTest, ReplicasShareTheirRows) {
  const auto view = DescribeExperts({}, census_, At({.num_experts = 4, .slots = {{0, 1}, {2, 3, 0}, {0, kEmptySlot}}}),
                                    absl::InfinitePast());
  EXPECT_THAT(view.layers(0).experts(0).workers(), ElementsAre(0, 1, 2));
  // 6 rows of expert 0 beside 6 that are on worker 1 alone: 3, 6 and 3.
  EXPECT_DOUBLE_EQ(view.layers(0).busiest_worker_over_mean(), 1.5);
}

TEST_F(ExpertViewTest, LayersAreThoseAskedFor) {
  v1::GetExpertsRequest request;
  request.add_layers(1);
  ASSERT_TRUE(CheckExpertsRequest(request, 2, 4).ok());
  const auto view = DescribeExperts(request, census_, At(ContiguousPlacement(4, 1, 0)), absl::InfinitePast());
  ASSERT_EQ(view.layers_size(), 1);
  EXPECT_EQ(view.layers(0).layer(), 1);
  request.add_layers(1);
  EXPECT_THAT(CheckExpertsRequest(request, 2, 4).message(), HasSubstr("layers: names layer 1 twice"));
  request.set_layers(1, 2);
  EXPECT_THAT(CheckExpertsRequest(request, 2, 4).message(),
              HasSubstr("names layer 2; the model has MoE layers 0 to 1"));
  request.set_layers(1, -1);
  EXPECT_FALSE(CheckExpertsRequest(request, 2, 4).ok());
}

TEST_F(ExpertViewTest, SaysWhyAnExpertIsThere) {
  v1::GetExpertsRequest request;
  request.mutable_why()->set_expert(2);
  ASSERT_TRUE(CheckExpertsRequest(request, 2, 4).ok());
  ResidencyView view = At(ContiguousPlacement(4, 2, 0));
  EXPECT_EQ(DescribeExperts(request, census_, view, absl::InfinitePast()).why(),
            "Layer 0, expert 2 was chosen by 4 of 6 counted tokens; it lives on worker 1. Not moved: neighbouring "
            "experts share a worker, as --rebalance_steps is 0.");
  view.settings = {.mode = PlacementMode::kAgreed, .spare_slots = 1, .rebalance_steps = 300};
  EXPECT_THAT(WhyThere(census_, view, 0, 2), HasSubstr("until the first plan, which is made every 300 steps."));
  view.outcome = PlanOutcome::kAborted;
  view.reason = "after 0 of 1 stages: rank 1: no room";
  EXPECT_THAT(WhyThere(census_, view, 0, 2),
              HasSubstr("The last plan was aborted: after 0 of 1 stages: rank 1: no room."));
  view.stages = 3;
  view.stages_in_use = 1;
  EXPECT_THAT(WhyThere(census_, view, 0, 2), HasSubstr("A plan is being carried out: 1 of its 3 stages are in use."));
  // What a plan says of it.
  ResidencyPlan plan;
  plan.layers = *view.layers;
  plan.layer_facts.resize(2);
  plan.expert_facts.assign(2, std::vector<ExpertFacts>(4));
  plan.expert_facts[0][2] = {.share = 0.25f, .hit_rate = 0.5f};
  view.plan = std::make_shared<const ResidencyPlan>(plan);
  EXPECT_THAT(WhyThere(census_, view, 0, 2),
              HasSubstr("Layer 0, expert 2 has 25.00 % of the rows (rank 1 of 4) and is hit in 50.0 % of the steps; 1 "
                        "replica on device 1."));
  EXPECT_EQ(DescribeExperts({}, census_, view, absl::InfinitePast()).why(), "");
}

TEST_F(ExpertViewTest, TellsTheLastPlan) {
  ResidencyView view = At(ContiguousPlacement(4, 2, 0));
  EXPECT_FALSE(DescribeExperts({}, census_, view, absl::UnixEpoch()).has_last_plan());
  view.settings.mode = PlacementMode::kAgreed;
  view.epoch = 9;
  view.outcome = PlanOutcome::kCommitted;
  view.last_copies = 3;
  view.last_bytes = 3000;
  view.ended = absl::UnixEpoch();
  const auto answer = DescribeExperts({}, census_, view, absl::UnixEpoch() + absl::Seconds(5));
  EXPECT_EQ(answer.placement(), "agreed");
  EXPECT_EQ(answer.placement_epoch(), 9);
  EXPECT_EQ(answer.last_plan().outcome(), v1::PlacementPlan::COMMITTED);
  EXPECT_EQ(answer.last_plan().copies(), 3);
  EXPECT_EQ(answer.last_plan().bytes(), 3000);
  EXPECT_EQ(answer.last_plan().age_seconds(), 5);
}

TEST_F(ExpertViewTest, WhyWantsAnExpertThatIsThere) {
  v1::GetExpertsRequest request;
  request.mutable_why()->set_layer(2);
  EXPECT_THAT(CheckExpertsRequest(request, 2, 4).message(), HasSubstr("why.layer: is 2; the model has 0 to 1"));
  request.mutable_why()->set_layer(1);
  request.mutable_why()->set_expert(4);
  EXPECT_THAT(CheckExpertsRequest(request, 2, 4).message(), HasSubstr("why.expert: is 4; the model has 0 to 3"));
  request.mutable_why()->set_expert(-1);
  EXPECT_FALSE(CheckExpertsRequest(request, 2, 4).ok());
}

}  // namespace
}  // namespace switchyard
