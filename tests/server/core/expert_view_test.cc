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
  ExpertCensus census_{{.num_layers = 2, .num_experts = 4, .top_k = 2}, 1000};
};

TEST_F(ExpertViewTest, TellsRowsPlacesAndSkew) {
  const auto view = DescribeExperts({}, census_, ContiguousPlacement(4, 2, 0));
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
  const auto view = DescribeExperts({}, census_, {.num_experts = 4, .slots = {{0, 1}, {2, 3, 0}, {0, kEmptySlot}}});
  EXPECT_THAT(view.layers(0).experts(0).workers(), ElementsAre(0, 1, 2));
  // 6 rows of expert 0 beside 6 that are on worker 1 alone: 3, 6 and 3.
  EXPECT_DOUBLE_EQ(view.layers(0).busiest_worker_over_mean(), 1.5);
}

TEST_F(ExpertViewTest, LayersAreThoseAskedFor) {
  v1::GetExpertsRequest request;
  request.add_layers(1);
  ASSERT_TRUE(CheckExpertsRequest(request, 2).ok());
  const auto view = DescribeExperts(request, census_, ContiguousPlacement(4, 1, 0));
  ASSERT_EQ(view.layers_size(), 1);
  EXPECT_EQ(view.layers(0).layer(), 1);
  request.add_layers(1);
  EXPECT_THAT(CheckExpertsRequest(request, 2).message(), HasSubstr("layers: names layer 1 twice"));
  request.set_layers(1, 2);
  EXPECT_THAT(CheckExpertsRequest(request, 2).message(), HasSubstr("names layer 2; the model has MoE layers 0 to 1"));
  request.set_layers(1, -1);
  EXPECT_FALSE(CheckExpertsRequest(request, 2).ok());
}

}  // namespace
}  // namespace switchyard
