// The computed memory of activations, compared with what a forward pass keeps; and of ranks among which rows travel.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/workers/train/training_group.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/forward/saved_forward.h"
#include "workers/model/runner/kv_cache.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/job/setup/memory_fit.h"
#include "workers/train/step/training_memory.h"

namespace switchyard::train {
namespace {

class ActivationMemoryTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Goldens, ActivationMemoryTest, testing::ValuesIn(TrainingGoldenNames()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Bytes of a rank's cache, and of what a pass over so many rows keeps for backward.
absl::StatusOr<int64_t> KeptByForward(TrainingGroup* group, int rank, int64_t rows) {
  model::Model& model = group->model(rank);
  const model::ModelConfig& config = model.config();
  std::vector<int32_t> blocks(static_cast<size_t>(rows));
  std::iota(blocks.begin(), blocks.end(), 0);
  model::Batch batch;
  for (int64_t p = 0; p < rows; ++p) {
    batch.tokens.push_back(static_cast<int32_t>((5 * p + rank) % config.vocab_size));
    batch.rope_rows.push_back(model.rope().RowOf(static_cast<int32_t>(p), static_cast<int32_t>(rows)));
  }
  batch.sequences.push_back(
      {.row_begin = 0, .num_query = static_cast<int32_t>(rows), .block_table = absl::MakeConstSpan(blocks)});
  int64_t bytes = rows * model::KvBytesPerToken(config, model.dtype());
  ASSIGN_OR_RETURN(model::KvCache cache, model::KvCache::Create(config, model.dtype(), /*block_size=*/1, bytes));
  ThreadPool pool(1, false);
  const Stream stream = Stream::OnCpu(&pool);
  const pipeline::MoeSchedule schedule =
      pipeline::BuildExpertParallel({.shared_expert = config.shared_intermediate > 0, .trains = true});
  moe::MoeStats stats;
  const TrainerGroup& ranks = group->groups(rank).group();
  const moe::MoeContext moe = {.stream = &stream,
                               .comm = ranks.experts,
                               .layout = ranks.layout,
                               .schedule = &schedule,
                               .deadline = absl::Now() + absl::Minutes(1),
                               .stats = &stats};
  model::SavedForward saved(config, model.dtype(), model::SavePolicy::kAll);
  saved.Begin(rows);
  RETURN_IF_ERROR(model.Forward({.batch = &batch, .moe = &moe}, model.all_layers(), &cache, &saved).status());
  const auto add = [&](const std::vector<TensorView>& views) {
    for (const TensorView& view : views) {
      if (view.raw() != nullptr) bytes += view.NumElements() * DTypeBytes(view.dtype());
    }
  };
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    const model::SavedLayer layer = saved.layer(i);
    add({layer.residual_in, layer.residual_mid, layer.projected, layer.qkv, layer.attended});
    add({layer.dense_sums, layer.dense_hidden});
    if (layer.moe == nullptr) continue;
    add({layer.moe->shared_sums, layer.moe->shared_hidden});
    for (int c = 0; c < layer.moe->num_chunks; ++c) {
      const moe::MoeSaved::Chunk& chunk = layer.moe->chunk(c);
      add({chunk.sums, chunk.hidden});
      if (chunk.exchange.holds_rows()) add({chunk.exchange.x()});
    }
  }
  return bytes;
}

// Of rows that came from other ranks as many as there may be.
TEST_P(ActivationMemoryTest, KnowsWhatAForwardPassKeeps) {
  const TrainingGolden golden = LoadTrainingGolden(GetParam());
  const model::ModelConfig config = *model::ReadModelConfig(golden.dir);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int world : {1, 2}) {
      TrainingGroup group(golden.dir, {.dtype = dtype, .world = world});
      std::atomic<int64_t> kept = 0;
      const std::vector<absl::Status> statuses = group.OnEach([&](int r) -> absl::Status {
        ASSIGN_OR_RETURN(const int64_t bytes, KeptByForward(&group, r, golden.length));
        kept += bytes;
        return absl::OkStatus();
      });
      for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::OkStatus());
      const auto computed = [&](int ranks) {
        const TrainingNeed need = {.dtype = dtype, .experts_per_layer = 1, .rows = golden.length, .world = ranks};
        return world * static_cast<int64_t>(TrainingMemory(config, need).activations);
      };
      EXPECT_GE(kept.load(), computed(1)) << world << " ranks";
      EXPECT_LE(kept.load(), computed(world)) << world << " ranks";
    }
  }
}

// Where experts are packed, rows stay within a group; the embedding's are gathered by all.
TEST(TrainingNeedTest, KnowsTheRanksThatRowsTravelAmong) {
  const model::ModelConfig config = *model::ReadModelConfig(LoadTrainingGolden(TrainingGoldenNames().front()).dir);
  jobs::JobSpec spec = {
      .sequence_length = 8, .batch_sequences = 4, .restore = {.input = pipeline::InputRestore::kOffload}};
  EXPECT_EQ(NeedOf(config, spec, {.world = 4}, /*packing=*/1, false).world, 4);
  EXPECT_EQ(NeedOf(config, spec, {.world = 4}, /*packing=*/2, false).world, 2);
  const TrainingNeed alone = NeedOf(config, spec, {.world = 4}, /*packing=*/4, false);
  EXPECT_EQ(TrainingMemory(config, alone).offloaded_activations, 0) << "nothing is written";
  EXPECT_EQ(alone.gathered_rows, 32 + 24 + 24) << "all rows; to three ranks 8 each; from them 24";
  EXPECT_EQ(NeedOf(config, spec, {.world = 1}, /*packing=*/1, false).gathered_rows, 0);
  spec.batch_sequences = config.vocab_size;
  EXPECT_EQ(NeedOf(config, spec, {.world = 4}, /*packing=*/1, false).gathered_rows, 0) << "the sum is smaller";
}

}  // namespace
}  // namespace switchyard::train
