// Jobs that keep only layers' inputs for backward (`recompute`): the same bits from less memory, for layers that run
// again.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/train/step/training_memory.h"

namespace switchyard::train {
namespace {

class TrainJobRecomputeTest : public JobFixture {
 protected:
  jobs::JobSpec Spec(bool recompute) const {
    jobs::JobSpec spec = JobFixture::Spec();
    spec.recompute = recompute;
    spec.offload = jobs::OffloadPolicy::kNever;
    return spec;
  }
  model::ModelConfig Config() const {
    const absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(root_.path() + "/checkpoints/model");
    EXPECT_TRUE(config.ok()) << config.status();
    return *config;
  }
};

// Bits do not say which it was; collectives do: a MoE layer that runs again sends its rows out again, and back.
TEST_F(TrainJobRecomputeTest, LayersButTheLastRunAgainToTheSameBits) {
  const model::ModelConfig config = Config();
  ASSERT_GT(config.layers.size(), 1u);
  int64_t layers = 0;
  for (size_t i = 0; i + 1 < config.layers.size(); ++i) layers += config.layers[i].moe ? 1 : 0;
  ASSERT_GT(layers, 0);
  std::map<bool, int64_t> launched;  // in the second step
  std::map<bool, std::map<std::string, std::string>> files;
  for (const bool recompute : {false, true}) {
    const auto count = [&](TrainJob*, comm::Communicator* comm, const StepProgress& progress) {
      if (progress.step == 1) launched[recompute] -= comm->ledger().num_launched();
      if (progress.step == 2) launched[recompute] += comm->ledger().num_launched();
    };
    const std::vector<RankStory> stories = Run(Spec(recompute), {.world = 2, .on_step = count});
    ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    files[recompute] = FilesOfStep(12);
    ForgetJob();
  }
  constexpr int64_t kMicroBatches = 2;  // of each rank
  EXPECT_EQ(launched[true] - launched[false], kMicroBatches * layers * 2);
  EXPECT_TRUE(files[true] == files[false]);
}

TEST_F(TrainJobRecomputeTest, AJobThatDoesNotFitWithoutItFitsWithIt) {
  const model::ModelConfig config = Config();
  const auto needed = [&](bool recompute) {
    return TrainingMemory(config, {.experts_per_layer = config.num_experts, .rows = 24, .recompute = recompute});
  };
  const auto enough = static_cast<int64_t>(needed(true).total());
  const auto run = [&](bool recompute, int64_t available) {
    std::vector<RankStory> stories = Run(Spec(recompute), {.available_memory = [=] { return available; }});
    ForgetJob();
    return stories;
  };
  EXPECT_EQ(run(true, enough)[0].end.outcome, jobs::TrainOutcome::kFinished);
  for (const bool recompute : {false, true}) {
    ExpectEnd(run(recompute, enough - 1), jobs::TrainOutcome::kFailed, absl::StatusCode::kResourceExhausted,
              absl::StrCat("activations of 24 rows ", static_cast<int64_t>(needed(recompute).activations), ")"));
  }
  ExpectEnd(run(false, enough), jobs::TrainOutcome::kFailed, absl::StatusCode::kResourceExhausted,
            absl::StrCat("training needs at least ", static_cast<int64_t>(needed(false).total()), " bytes"));
}

}  // namespace
}  // namespace switchyard::train
