#include "server/balancer/expert_view.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class ExpertViewTest : public testing::Test {
 protected:
  ExpertViewTest() {
    EXPECT_TRUE(load_stats_.Add(popularity::Phase::kPrefill, {6, 0, 0, 2, 2, 2, 2, 2}).ok());
    EXPECT_TRUE(load_stats_.Add(popularity::Phase::kDecode, {0, 0, 4, 0, 1, 1, 1, 1}).ok());
  }
  // Without reports, on two workers.
  ExpertsCopy Unreported(placement::PlacementMode mode = placement::PlacementMode::kAgreed) const {
    return {.load_stats = load_stats_, .mode = mode, .num_workers = 2, .reports = {}};
  }
  // Worker 0's report 2 s after the epoch: worker 1 has experts 0 and 1 of the first layer in its spare slots.
  ExpertsCopy Reported(placement::PlacementMode mode = placement::PlacementMode::kAgreed) const {
    placement::ExpertReport report;
    report.placements = {{.num_experts = 4, .slots = {{0, 1, placement::kEmptySlot}, {2, 3, 0, 1}}},
                         {.num_experts = 4, .slots = {{0, 1, 3}, {2, 3}}}};
    using O = placement::SlotOrigin;
    report.origins = {{O::kStart, O::kStart, O::kStart, O::kStart, O::kStart, O::kGate, O::kEstimate},
                      std::vector<O>(5, O::kStart)};
    ExpertsCopy experts = Unreported(mode);
    experts.reports.push_back(
        {std::make_shared<const placement::ExpertReport>(std::move(report)), absl::UnixEpoch() + absl::Seconds(2)});
    return experts;
  }
  popularity::ExpertLoadStats load_stats_{{.num_layers = 2, .num_experts = 4, .top_k = 2}, 1000};
};

TEST_F(ExpertViewTest, ReportsRowsPlacesAndSkew) {
  const auto view = DescribeExperts({}, Unreported(), absl::InfinitePast());
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

TEST_F(ExpertViewTest, LayersAreThoseAskedFor) {
  v1::GetExpertsRequest request;
  request.add_layers(1);
  ASSERT_TRUE(CheckExpertsRequest(request, 2, 4).ok());
  const auto view = DescribeExperts(request, Unreported(), absl::InfinitePast());
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
  EXPECT_EQ(DescribeExperts(request, Unreported(), absl::InfinitePast()).why(),
            "Layer 0, expert 2 was chosen by 4 of 6 counted tokens; it lives on worker 1, with its neighbours.");
  ExpertsCopy budgeted = Unreported();
  budgeted.budget_slots = 5;
  EXPECT_THAT(WhyThere(budgeted, 0, 2, absl::InfinitePast()),
              HasSubstr("Under the expert budget a worker has room for 5 experts of all layers, and copies the others "
                        "when they are hit; which, its policy decides."));
  EXPECT_EQ(DescribeExperts({}, Unreported(), absl::InfinitePast()).why(), "");
  EXPECT_EQ(DescribeExperts({}, Unreported(), absl::InfinitePast()).placement(), "agreed");
}

std::vector<std::string> Places(const v1::ExpertUse& expert) {
  std::vector<std::string> places;
  for (const v1::Replica& replica : expert.now())
    places.push_back(absl::StrCat(replica.worker(), " ", v1::Replica::Reason_Name(replica.reason())));
  return places;
}

TEST_F(ExpertViewTest, ReportsWhereReplicasAreNowAndWhy) {
  const ExpertsCopy experts = Reported();
  const absl::Time now = absl::UnixEpoch() + absl::Seconds(5);
  const auto answer = DescribeExperts({}, experts, now);
  EXPECT_EQ(answer.report_age_seconds(), 3);
  EXPECT_THAT(Places(answer.layers(0).experts(0)), ElementsAre("0 RESIDENT", "1 GATE"));
  EXPECT_THAT(Places(answer.layers(0).experts(1)), ElementsAre("0 RESIDENT", "1 ESTIMATE"));
  EXPECT_THAT(Places(answer.layers(0).experts(2)), ElementsAre("1 RESIDENT"));
  EXPECT_THAT(Places(answer.layers(1).experts(3)), ElementsAre("0 START", "1 RESIDENT"));
  EXPECT_THAT(answer.layers(0).experts(0).workers(), ElementsAre(0));
  EXPECT_THAT(WhyThere(experts, 0, 0, now),
              HasSubstr("Spare slots had it 3.0 s ago on worker 1 (its layer's gate asked for it)."));
  EXPECT_THAT(WhyThere(experts, 0, 1, now), HasSubstr("worker 1 (an estimate asked for it)."));
  EXPECT_THAT(WhyThere(experts, 1, 3, now), HasSubstr("worker 0 (since the group began)."));
  EXPECT_THAT(WhyThere(experts, 0, 2, now), HasSubstr("No spare slot had it 3.0 s ago."));
  EXPECT_THAT(WhyThere(Unreported(), 0, 0, now), Not(HasSubstr("pare slot")));
  // Without reports there is no text.
  const auto unreported = DescribeExperts({}, Unreported(), now);
  EXPECT_FALSE(unreported.has_report_age_seconds());
  EXPECT_TRUE(unreported.layers(0).experts(0).now().empty());
}

// The paper's modes have no residents: an expert at its first place was not requested.
TEST_F(ExpertViewTest, WithoutResidentsAllSlotsFollowTheBatches) {
  const auto answer = DescribeExperts({}, Reported(placement::PlacementMode::kLina), absl::UnixEpoch());
  EXPECT_THAT(Places(answer.layers(0).experts(0)), ElementsAre("0 START", "1 GATE"));
}

TEST_F(ExpertViewTest, ReportsPredictorsOfAllWorkers) {
  ExpertsCopy experts = Unreported();
  popularity::PredictorStats path = {
      .layer = 1, .phase = popularity::Phase::kDecode, .ahead = 1, .estimator = popularity::LivePredictor::kPath};
  path.batches = 30;
  path.accuracy = 0.5;
  path.distance = 0.2;
  path.used = true;
  popularity::PredictorStats other = path;
  other.batches = 10;
  other.accuracy = 0.1;
  other.distance = 0.6;
  other.used = false;
  const auto reported = [](std::vector<popularity::PredictorStats> stats, int second) {
    auto report = std::make_shared<placement::ExpertReport>();
    report->predictor_stats = std::move(stats);
    return ReceivedReport{report, absl::UnixEpoch() + absl::Seconds(second)};
  };
  experts.reports = {reported({path}, 4), reported({other}, 3)};
  const auto answer = DescribeExperts({}, experts, absl::UnixEpoch() + absl::Seconds(5));
  EXPECT_EQ(answer.report_age_seconds(), 2) << "the oldest word's";
  EXPECT_TRUE(answer.layers(0).estimators().empty());
  ASSERT_EQ(answer.layers(1).estimators_size(), 1);
  const v1::EstimatorUse& use = answer.layers(1).estimators(0);
  EXPECT_EQ(use.estimator(), "path");
  EXPECT_EQ(use.phase(), "decode");
  EXPECT_EQ(use.layers_ahead(), 1);
  EXPECT_NEAR(use.accuracy(), 0.4, 1e-12);
  EXPECT_NEAR(use.total_variation(), 0.3, 1e-12);
  EXPECT_EQ(use.batches(), 40);
  EXPECT_EQ(use.workers_using(), 1);
  experts.reports.push_back({});
  EXPECT_FALSE(DescribeExperts({}, experts, absl::UnixEpoch()).has_report_age_seconds())
      << "one worker has not reported";
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
}  // namespace switchyard::server
