// The stages of a backward pass: each gradient belongs to one, and has its last share when that is done.
#include "workers/model/backward/backward_stages.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/training_group.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/model/backward/loss_head.h"
#include "workers/model/backward/model_backward.h"
#include "workers/model/config/memory_plan.h"

namespace switchyard::model {
namespace {

class BackwardStagesTest : public ::testing::TestWithParam<std::string> {
 protected:
  const train::TrainingGolden golden_ = train::LoadTrainingGolden(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Goldens, BackwardStagesTest, ::testing::ValuesIn(train::TrainingGoldenNames()),
                         [](const auto& info) { return TestName(info.param); });

std::vector<TensorView> AllOf(const ModelGradients& gradients, const BackwardStage& stage) {
  std::vector<TensorView> all = DenseGradientsOf(gradients, stage);
  const std::vector<TensorView> experts = ExpertGradientsOf(gradients, stage);
  all.insert(all.end(), experts.begin(), experts.end());
  return all;
}

TEST_P(BackwardStagesTest, EveryGradientComesOnce) {
  train::TrainingGroup group(golden_.dir, {.world = 2});
  for (int rank = 0; rank < 2; ++rank) {
    train::Parameters& parameters = group.parameters(rank);
    std::map<const void*, int> dense, experts;
    for (const BackwardStage& stage : BackwardStages(group.model(rank).config().num_layers())) {
      for (const TensorView& view : DenseGradientsOf(parameters.gradients(), stage)) ++dense[view.raw()];
      for (const TensorView& view : ExpertGradientsOf(parameters.gradients(), stage)) ++experts[view.raw()];
    }
    for (const train::ParameterBlock& block : parameters.blocks()) {
      const bool everywhere = block.shard == Shard::kReplicated;
      EXPECT_EQ(dense[block.gradient.view().raw()], everywhere ? 1 : 0) << block.parts[0].name;
      EXPECT_EQ(experts[block.gradient.view().raw()], everywhere ? 0 : 1) << block.parts[0].name;
    }
    EXPECT_EQ(dense.size(), parameters.blocks().size());  // (asking has added the others)
    EXPECT_EQ(experts.size(), parameters.blocks().size());
  }
}

// One pass of one rank over some sequences.
class Pass {
 public:
  Pass(train::TrainingGroup* group, int64_t sequences, int64_t length)
      : model_(&group->model(0)), parameters_(&group->parameters(0)), rows_(sequences * length) {
    const ModelConfig& config = model_->config();
    layout_ = moe::ExpertLayout::Contiguous(static_cast<int>(config.num_experts), 1);
    schedule_ = pipeline::BuildExpertParallel({.shared_expert = config.shared_intermediate > 0, .trains = true});
    for (int64_t s = 0; s < sequences; ++s) {
      std::vector<int32_t>& blocks = blocks_.emplace_back(length);
      std::iota(blocks.begin(), blocks.end(), static_cast<int32_t>(s * length));
      for (int64_t p = 0; p < length; ++p) {
        batch_.tokens.push_back(static_cast<int32_t>((7 * s + 5 * p) % config.vocab_size));
        batch_.rope_rows.push_back(model_->rope().RowOf(static_cast<int32_t>(p), static_cast<int32_t>(length)));
      }
    }
    for (int64_t s = 0; s < sequences; ++s) {
      batch_.sequences.push_back({.row_begin = s * length,
                                  .num_query = static_cast<int32_t>(length),
                                  .block_table = absl::MakeConstSpan(blocks_[s])});
    }
  }

  absl::Status Run(const Stream& stream, const std::function<void(const BackwardStage&)>& on_stage) {
    const int64_t token_bytes = KvBytesPerToken(model_->config(), model_->dtype());
    absl::StatusOr<KvCache> cache =
        KvCache::Create(model_->config(), model_->dtype(), /*block_size=*/1, std::max<int64_t>(rows_, 1) * token_bytes);
    RETURN_IF_ERROR(cache.status());
    SavedForward saved(model_->config(), model_->dtype(), SavePolicy::kAll);
    saved.Begin(rows_);
    moe::MoeStats stats;
    const moe::MoeContext moe = {
        .stream = &stream, .comm = comm_.get(), .layout = &layout_, .schedule = &schedule_, .stats = &stats};
    const StageIn in = {.batch = &batch_, .moe = &moe};
    StageOut out;
    ASSIGN_OR_RETURN(out, model_->Forward(in, model_->all_layers(), &*cache, &saved));
    ScratchTensor d_residual(AccDType(model_->dtype()), {model_->config().hidden});
    LossHead head(model_);
    RETURN_IF_ERROR(head.Run(stream, out.hidden, batch_.token_ids(), /*scale=*/0.1, parameters_->gradients(),
                             d_residual.Rows(rows_))
                        .status());
    ModelBackward backward(model_);
    return backward.Run({.forward = in,
                         .cache = &*cache,
                         .saved = &saved,
                         .gradients = &parameters_->gradients(),
                         .on_stage = on_stage},
                        model_->all_layers(), d_residual.Rows(rows_));
  }

 private:
  Model* const model_;
  train::Parameters* const parameters_;
  const int64_t rows_;
  const std::unique_ptr<comm::Communicator> comm_ = comm::MakeSoloCommunicator();
  moe::ExpertLayout layout_;
  pipeline::MoeSchedule schedule_;
  std::vector<std::vector<int32_t>> blocks_;
  Batch batch_;
};

std::string BytesOf(const TensorView& view) {
  return std::string(static_cast<const char*>(view.raw()), static_cast<size_t>(comm::NumBytes(view)));
}

TEST_P(BackwardStagesTest, AGradientIsCompleteWhenItsStageIsDone) {
  train::TrainingGroup group(golden_.dir, {});
  const ModelGradients& gradients = group.parameters(0).gradients();
  ThreadPool pool(1);
  const Stream stream = Stream::OnCpu(&pool);
  Pass pass(&group, /*sequences=*/3, /*length=*/9);
  std::vector<BackwardStage> seen;
  std::vector<std::vector<std::string>> then;  // [stages] of its gradients
  ASSERT_TRUE(pass.Run(stream,
                       [&](const BackwardStage& stage) {
                         seen.push_back(stage);
                         std::vector<std::string>& bytes = then.emplace_back();
                         for (const TensorView& view : AllOf(gradients, stage)) bytes.push_back(BytesOf(view));
                       })
                  .ok());
  ASSERT_EQ(seen, BackwardStages(group.model(0).config().num_layers()));
  for (size_t i = 0; i < seen.size(); ++i) {
    const std::vector<TensorView> now = AllOf(gradients, seen[i]);
    ASSERT_EQ(now.size(), then[i].size());
    for (size_t g = 0; g < now.size(); ++g) {
      EXPECT_TRUE(BytesOf(now[g]) == then[i][g])
          << "part " << static_cast<int>(seen[i].part) << " of layer " << seen[i].layer << ", gradient " << g;
    }
  }
}

TEST_P(BackwardStagesTest, ARankWithoutRowsPassesThemAll) {
  train::TrainingGroup group(golden_.dir, {});
  ThreadPool pool(1);
  const Stream stream = Stream::OnCpu(&pool);
  Pass pass(&group, /*sequences=*/0, /*length=*/9);
  std::vector<BackwardStage> seen;
  ASSERT_TRUE(pass.Run(stream, [&](const BackwardStage& stage) { seen.push_back(stage); }).ok());
  EXPECT_EQ(seen, BackwardStages(group.model(0).config().num_layers()));
}

}  // namespace
}  // namespace switchyard::model
