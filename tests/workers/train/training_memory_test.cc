// The computed memory of a training, compared with the memory that it uses.
#include "workers/train/step/training_memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/train/fake_state_file.h"
#include "tests/workers/train/training_group.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/job/setup/memory_fit.h"
#include "workers/train/packing/expert_groups.h"
#include "workers/train/parameters/parameter_rules.h"

namespace switchyard::train {
namespace {

struct RankOptions {
  DType dtype = DType::kF32;
  std::vector<jobs::ParameterRule> rules = {};
  model::AdapterDesc adapters = {};
  ShardPlace place = {};
  bool zero = false;
};

// What is allocated of parameters: masters, gradients and moments, of weights the transposes, too.  (Vectors, which
// have none, count twice, as they do in the plan.)
TrainingBytes BytesOf(const Parameters& parameters, DType dtype) {
  TrainingBytes bytes;
  for (const ParameterBlock& block : parameters.blocks()) {
    const bool is_table = block.tensor != nullptr && block.tensor->shape().rank == 2;
    EXPECT_EQ(block.transposed.empty(), block.tensor != nullptr) << block.parts[0].name;
    const int64_t state = block.bytes() - block.transposed.bytes();
    const int64_t weights = (is_table ? 1 : 2) * block.size() * DTypeBytes(dtype);
    bytes.parameters += state;
    bytes.weights += weights;
    if (block.shard == model::Shard::kExpert) bytes.experts += state + weights;
  }
  return bytes;
}

// The same on one rank of some.
TrainingBytes OnRank(const model::ModelConfig& config, const RankOptions& options) {
  ThreadPool pool(1, false);
  const Stream stream = Stream::OnCpu(&pool);
  absl::StatusOr<model::ModelWeights> weights = model::AllocateWeights(
      config, options.dtype,
      PackedResidents(static_cast<int>(config.num_experts), options.place.world, 1, options.place.rank));
  SY_CHECK_OK(weights.status());
  SY_CHECK_OK(model::AllocateAdapters(config, options.dtype, options.adapters, &*weights));
  const auto model = model::Model::Create(stream, config, options.dtype, *std::move(weights), config.context);
  SY_CHECK_OK(model.status());
  const auto parameters =
      Parameters::Create(stream, model->get(), nullptr, options.rules, options.zero ? options.place : ShardPlace());
  SY_CHECK_OK(parameters.status());
  return BytesOf(**parameters, options.dtype);
}

class TrainingMemoryTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Goldens, TrainingMemoryTest, testing::ValuesIn(TrainingGoldenNames()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(TrainingMemoryTest, KnowsParametersAndWeights) {
  const TrainingGolden golden = LoadTrainingGolden(GetParam());
  const absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(golden.dir);
  ASSERT_TRUE(config.ok());
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
    TrainingGroup group(golden.dir, {.dtype = dtype});
    int64_t values = 0;
    for (const ParameterBlock& block : group.parameters(0).blocks()) values += block.size();
    const TrainingBytes bytes =
        TrainingMemory(*config, {.dtype = dtype, .experts_per_layer = config->num_experts, .rows = 1});
    EXPECT_EQ(bytes.parameters, 4 * values * DTypeBytes(AccDType(dtype)));
    EXPECT_EQ(bytes.offloaded, 0);
    const TrainingBytes less =
        TrainingMemory(*config, {.dtype = dtype, .experts_per_layer = config->num_experts, .rows = 1, .offload = true});
    ThreadPool pool(1, false);
    const auto rest = Parameters::Create(Stream::OnCpu(&pool), &group.model(0),
                                         [](int64_t size) { return std::make_unique<FakeStateFile>(size); });
    ASSERT_TRUE(rest.ok()) << rest.status();
    int64_t kept = 0;
    for (const ParameterBlock& block : (*rest)->blocks()) {
      kept += block.bytes() - block.transposed.bytes();
      EXPECT_EQ(block.master.bytes() == 0, block.shard == model::Shard::kExpert);
    }
    EXPECT_EQ(less.offloaded, (*rest)->offload()->counters().bytes);
    const int64_t layers = config->num_moe_layers();
    EXPECT_EQ(less.parameters, kept + less.offloaded * std::min<int64_t>(layers, 2) / layers);
    EXPECT_EQ(bytes.weights, BytesOf(group.parameters(0), dtype).weights);
  }
}

TEST_P(TrainingMemoryTest, KnowsWhatFrozenParametersAndAdaptersNeed) {
  const TrainingGolden golden = LoadTrainingGolden(GetParam());
  const absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(golden.dir);
  ASSERT_TRUE(config.ok());
  const auto frozen = [](std::vector<std::string> patterns) {
    jobs::JobSpec spec;
    for (const std::string& pattern : patterns) spec.parameters.push_back({.pattern = pattern, .frozen = true});
    return spec;
  };
  // Of the rank that needs the most, as no rank knows the others'.
  const auto compare = [&](const jobs::JobSpec& spec, DType dtype, int world, int packing) {
    TrainingGroup group(golden.dir, {.dtype = dtype,
                                     .world = world,
                                     .packing = packing,
                                     .rules = spec.parameters,
                                     .adapters = AdaptersOf(spec.lora)});
    const absl::StatusOr<FrozenElements> elements = CountFrozen(spec, *config);
    ASSERT_TRUE(elements.ok()) << elements.status();
    TrainingBytes most;
    for (int r = 0; r < world; ++r) {
      const TrainingBytes here = BytesOf(group.parameters(r), dtype);
      if (here.total() > most.total()) most = here;
    }
    const TrainingBytes bytes = TrainingMemory(
        *config,
        {.dtype = dtype, .experts_per_layer = config->num_experts / world * packing, .rows = 1, .frozen = *elements});
    EXPECT_EQ(bytes.parameters, most.parameters) << world << " ranks, packing " << packing;
    EXPECT_EQ(bytes.weights, most.weights);
    EXPECT_EQ(bytes.experts, most.experts) << world << " ranks, packing " << packing;
  };
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
    compare(frozen({"*.experts.*", "*o_proj*"}), dtype, 1, 1);
    jobs::JobSpec adapted;
    adapted.lora = {.rank = 5, .targets = {"k_proj", "o_proj"}};
    compare(adapted, dtype, 1, 1);
    if (!ops::IsGated(config->activation)) continue;
    adapted.lora = {.rank = 3, .targets = {"q_proj", "gate_up_proj", "down_proj"}};
    compare(adapted, dtype, 1, 1);
    if (config->num_experts % 2 == 0) compare(adapted, dtype, 2, 1);
  }
  // Parts of packed weights, and weights without their biases.
  compare(frozen({"*k_proj*"}), DType::kF32, 1, 1);
  compare(frozen({"*q_proj.weight", "*k_proj.weight", "*v_proj.weight"}), DType::kF32, 1, 1);
  for (const char* up : {"*up_proj*", "*.w3.*"}) {
    if (CountFrozen(frozen({up}), *config).ok()) compare(frozen({up}), DType::kF32, 1, 1);
  }
  // Experts by number, of which a rank has others than its neighbour.
  if (config->num_experts % 2 != 0) return;
  const std::string last = absl::StrCat("*.experts.", config->num_experts - 1, ".*");
  for (const int packing : {1, 2}) {
    compare(frozen({"*.experts.0.*", "*.experts.1.*"}), DType::kF32, 2, packing);
    compare(frozen({"*.experts.0.*", "*.experts.1.*", last}), DType::kF32, 2, packing);
    compare(frozen({"*.experts.*"}), DType::kF32, 2, packing);
  }
}

// Of a rank that has a part of the dense state; with a vocabulary that makes the parts even.
TEST_P(TrainingMemoryTest, KnowsWhatARankHasOfShardedState) {
  model::ModelConfig config = *model::ReadModelConfig(LoadTrainingGolden(GetParam()).dir);
  config.vocab_size = 1 << 14;
  const std::vector<jobs::ParameterRule> frozen = {{.pattern = "*embed_tokens*", .frozen = true}};
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
    for (const int world : {1, 2, 4}) {
      for (const std::vector<jobs::ParameterRule>& rules : {std::vector<jobs::ParameterRule>(), frozen}) {
        jobs::JobSpec spec;
        spec.parameters = rules;
        const absl::StatusOr<FrozenElements> elements = CountFrozen(spec, config);
        if (!elements.ok()) continue;  // tied
        const RankShare share = {.world = world, .frozen = *elements};
        spec.zero = 1;
        spec.dtype = dtype == DType::kF32    ? jobs::TrainDType::kF32
                     : dtype == DType::kBf16 ? jobs::TrainDType::kBf16
                                             : jobs::TrainDType::kF64;
        spec.batch_sequences = world;
        const double computed =
            static_cast<double>(TrainingMemory(config, NeedOf(config, spec, share, /*packing=*/1, false)).parameters);
        for (int r = 0; r < world; ++r) {
          const auto kept = static_cast<double>(
              OnRank(config, {.dtype = dtype, .rules = rules, .place = {r, world}, .zero = true}).parameters);
          const int64_t more = config.num_experts % world;
          if (more > 0 && r >= more) {  // it has an expert less than what is computed
            EXPECT_LT(kept, computed) << "rank " << r << " of " << world;
            continue;
          }
          EXPECT_NEAR(kept, computed, (world == 1 ? 0 : 0.05) * computed) << "rank " << r << " of " << world;
        }
      }
    }
  }
}

// A rank with an expert less may need more than the others, if theirs are frozen.
TEST_P(TrainingMemoryTest, KnowsTheRankThatNeedsMostOfUnevenExperts) {
  model::ModelConfig config = *model::ReadModelConfig(LoadTrainingGolden(GetParam()).dir);
  config.num_experts = 3;
  config.top_k = std::min<int64_t>(config.top_k, 3);
  for (const std::vector<int>& experts : {std::vector<int>{0, 1}, {2}, {0}, {0, 1, 2}, {1, 2}}) {
    jobs::JobSpec spec;
    for (const int expert : experts) {
      spec.parameters.push_back({.pattern = absl::StrCat("*.experts.", expert, ".*"), .frozen = true});
    }
    const absl::StatusOr<FrozenElements> elements = CountFrozen(spec, config);
    ASSERT_TRUE(elements.ok()) << elements.status();
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      spec.dtype = dtype == DType::kF32 ? jobs::TrainDType::kF32 : jobs::TrainDType::kBf16;
      TrainingBytes most;
      for (int r = 0; r < 2; ++r) {
        const TrainingBytes here = OnRank(config, {.dtype = dtype, .rules = spec.parameters, .place = {r, 2}});
        if (here.total() > most.total()) most = here;
      }
      const RankShare share = {.world = 2, .frozen = *elements};
      const TrainingBytes bytes = TrainingMemory(config, NeedOf(config, spec, share, /*packing=*/1, false));
      EXPECT_EQ(bytes.parameters + bytes.weights, most.total()) << experts.size() << " from " << experts[0];
    }
  }
}

// Each rank has its own experts' adapters, and those of attention.
TEST_P(TrainingMemoryTest, KnowsAdaptersOfUnevenExperts) {
  model::ModelConfig config = *model::ReadModelConfig(LoadTrainingGolden(GetParam()).dir);
  if (!ops::IsGated(config.activation)) return;
  config.num_experts = 3;
  config.top_k = std::min<int64_t>(config.top_k, 3);
  jobs::JobSpec spec;
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"q_proj", "gate_up_proj", "down_proj"}, std::vector<std::string>{"down_proj"}}) {
    spec.lora = {.rank = 3, .targets = targets};
    const absl::StatusOr<FrozenElements> elements = CountFrozen(spec, config);
    ASSERT_TRUE(elements.ok()) << elements.status();
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      spec.dtype = dtype == DType::kF32 ? jobs::TrainDType::kF32 : jobs::TrainDType::kBf16;
      RankOptions options = {.dtype = dtype, .adapters = AdaptersOf(spec.lora), .place = {0, 2}};
      const TrainingBytes most = OnRank(config, options);
      options.place.rank = 1;
      EXPECT_EQ(most.experts, 2 * OnRank(config, options).experts) << "two experts, and one";
      const RankShare share = {.world = 2, .frozen = *elements};
      const TrainingBytes bytes = TrainingMemory(config, NeedOf(config, spec, share, /*packing=*/1, false));
      EXPECT_EQ(bytes.parameters, most.parameters);
      EXPECT_EQ(bytes.weights, most.weights);
      EXPECT_EQ(bytes.experts, most.experts);
    }
  }
}

TEST_P(TrainingMemoryTest, RowsCostWhatIsKeptOfThem) {
  const absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(LoadTrainingGolden(GetParam()).dir);
  ASSERT_TRUE(config.ok());
  const auto activations = [&](int64_t rows, bool recompute) {
    return TrainingMemory(*config, {.experts_per_layer = 1, .rows = rows, .recompute = recompute}).activations;
  };
  EXPECT_EQ(activations(0, false), 0);
  EXPECT_EQ(activations(100, false), 100 * activations(1, false));
  EXPECT_LT(activations(1, true), activations(1, false));
}

TEST_P(TrainingMemoryTest, SaysWhatIsNeededAndWhatIsThere) {
  const absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(LoadTrainingGolden(GetParam()).dir);
  ASSERT_TRUE(config.ok());
  const TrainingNeed need = {.experts_per_layer = config->num_experts, .rows = 64};
  const auto total = static_cast<int64_t>(TrainingMemory(*config, need).total());
  EXPECT_TRUE(CheckTrainingMemory(*config, need, total).ok());
  const absl::Status status = CheckTrainingMemory(*config, need, total - 1);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr(absl::StrCat("training needs at least ", total, " bytes")));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(absl::StrCat("has ", total - 1, " bytes available")));
  // Absurd sizes get an answer, too.
  model::ModelConfig absurd = *config;
  absurd.hidden = absurd.vocab_size = int64_t{1} << 40;
  EXPECT_TRUE(absl::IsResourceExhausted(CheckTrainingMemory(absurd, need, int64_t{1} << 62)));
}

TEST(TrainingMemoryRestoreTest, WhatIsNotKeptTakesNothing) {
  const model::ModelConfig config = *model::ReadModelConfig(LoadTrainingGolden(TrainingGoldenNames().front()).dir);
  const auto activations = [&](pipeline::InputRestore input, pipeline::HiddenRestore hidden, int world) {
    const TrainingNeed need = {.experts_per_layer = config.num_experts,
                               .rows = 64,
                               .world = world,
                               .restore = {.input = input, .hidden = hidden}};
    return static_cast<int64_t>(TrainingMemory(config, need).activations);
  };
  const auto offloaded = [&](pipeline::InputRestore input, pipeline::HiddenRestore hidden, int world) {
    const TrainingNeed need = {.experts_per_layer = config.num_experts,
                               .rows = 64,
                               .world = world,
                               .restore = {.input = input, .hidden = hidden}};
    return static_cast<int64_t>(TrainingMemory(config, need).offloaded_activations);
  };
  using enum pipeline::InputRestore;
  const int64_t alone = activations(kKeep, pipeline::HiddenRestore::kKeep, 1);
  const int64_t kept = activations(kKeep, pipeline::HiddenRestore::kKeep, 2);
  const int64_t pairs = 64 * config.num_moe_layers() * config.top_k * 4;
  const int64_t copied = pairs / config.top_k * std::min<int64_t>(config.top_k, 2) * config.hidden;
  EXPECT_EQ(activations(kResend, pipeline::HiddenRestore::kKeep, 1), alone) << "a rank alone copies none";
  EXPECT_EQ(kept - activations(kResend, pipeline::HiddenRestore::kKeep, 2), copied);
  EXPECT_EQ(activations(kOffload, pipeline::HiddenRestore::kKeep, 2),
            activations(kResend, pipeline::HiddenRestore::kKeep, 2));
  EXPECT_EQ(offloaded(kOffload, pipeline::HiddenRestore::kKeep, 1), 0);
  EXPECT_EQ(offloaded(kOffload, pipeline::HiddenRestore::kKeep, 2), copied * 5 / 4);
  EXPECT_EQ(offloaded(kResend, pipeline::HiddenRestore::kRecompute, 2), 0);
  const int64_t inside = ops::SumsWidth(config.activation, config.expert_intermediate) + config.expert_intermediate;
  EXPECT_EQ(kept - activations(kKeep, pipeline::HiddenRestore::kRecompute, 2), pairs * inside);
  EXPECT_EQ(offloaded(kResend, pipeline::HiddenRestore::kOffload, 1), pairs * inside * 5 / 4);
}

TEST(MemoryRemedyTest, IsOfThePartThatTakesMost) {
  model::ModelConfig config = *model::ReadModelConfig(LoadTrainingGolden(TrainingGoldenNames().front()).dir);
  TrainingNeed need = {.experts_per_layer = config.num_experts, .rows = 1 << 20, .world = 2};
  const MemoryChoices choices = {.micro_batch_sequences = 8, .world = 1};
  EXPECT_EQ(MemoryRemedy(config, need, choices, 0),
            "most are activations: a lower micro_batch_sequences (now 8) or recompute or restore_input or "
            "restore_hidden makes them fewer");
  need.restore.hidden = pipeline::HiddenRestore::kRecompute;
  EXPECT_EQ(MemoryRemedy(config, need, choices, 0),
            "most are activations: a lower micro_batch_sequences (now 8) or restore_input makes them fewer");
  need.restore = {};
  need.world = 1;
  EXPECT_EQ(MemoryRemedy(config, need, choices, 0),
            "most are activations: a lower micro_batch_sequences (now 8) or recompute or restore_hidden makes them "
            "fewer")
      << "no rows come from other ranks";
  need.recompute = true;
  EXPECT_EQ(MemoryRemedy(config, need, choices, 0),
            "most are activations: a lower micro_batch_sequences (now 8) makes them fewer");
  EXPECT_EQ(MemoryRemedy(config, need, {.micro_batch_sequences = 1}, 0),
            "most are activations: a lower sequence_length makes them fewer");

  need.rows = 1;
  config.expert_intermediate = 1 << 14;
  const TrainingBytes bytes = TrainingMemory(config, need);
  EXPECT_LT(bytes.activations, bytes.experts);
  const auto size = [](absl::int128 value) { return static_cast<int64_t>(value); };
  const std::string experts = absl::StrCat("most are experts', ", size(bytes.experts), " bytes: ");
  TrainingNeed in_file = need;
  in_file.offload = true;
  const TrainingBytes with_file = TrainingMemory(config, in_file);
  const std::string file =
      absl::StrCat(", with which masters and moments of experts, ", size(with_file.offloaded), " bytes, are in a file");
  EXPECT_EQ(MemoryRemedy(config, need, choices, 0),
            experts + "this worker has no --train_offload_dir" + file + "; more workers than 1 share them");
  EXPECT_EQ(MemoryRemedy(config, need, {.offload = jobs::OffloadPolicy::kNever}, 0),
            experts + "offload is never, not auto" + file + "; more workers than 1 share them");
  EXPECT_EQ(MemoryRemedy(config, need, choices, size(with_file.total())),
            "this worker has no --train_offload_dir" + file)
      << "it is enough";
  EXPECT_EQ(MemoryRemedy(config, in_file, choices, 0),
            absl::StrCat("most are experts', ", size(with_file.experts), " bytes: more workers than 1 share them"));
  EXPECT_EQ(MemoryRemedy(config, in_file, {.world = static_cast<int>(config.num_experts)}, 0),
            absl::StrCat("most are experts', ", size(with_file.experts),
                         " bytes: workers with more memory are needed, as each of ", config.num_experts,
                         " has one of a layer already"))
      << "more workers than experts are refused";
}

TEST(MemoryRemedyTest, IsOfWhatEveryWorkerHas) {
  model::ModelConfig config = *model::ReadModelConfig(LoadTrainingGolden(TrainingGoldenNames().front()).dir);
  config.vocab_size = 1 << 24;
  const TrainingNeed need = {.experts_per_layer = config.num_experts, .rows = 1, .recompute = true};
  const auto size = [](absl::int128 value) { return static_cast<int64_t>(value); };
  const TrainingBytes wide = TrainingMemory(config, need);
  const std::string dense =
      absl::StrCat("most are parameters that every worker has, ", size(wide.weights + wide.parameters - wide.experts),
                   " bytes: workers with more memory are needed");
  EXPECT_EQ(MemoryRemedy(config, need, {.world = 1}, 0), dense);
  const std::string head = absl::StrCat("most are parameters that every worker has, ",
                                        size(wide.weights + wide.parameters - wide.experts), " bytes: ");
  const std::string more = "workers with more memory are needed, or fewer of them on a machine (2 share this one's)";
  TrainingNeed sharded = need;
  sharded.dense_shards = 4;
  const int64_t less = size(wide.parameters - TrainingMemory(config, sharded).parameters);
  EXPECT_GT(less, size(wide.parameters) / 2);
  EXPECT_EQ(MemoryRemedy(config, need, {.world = 4, .ranks_here = 2}, 0),
            absl::StrCat(head, "zero=1, with which each has ", less, " bytes less of them, is not enough; ", more));
  EXPECT_EQ(
      MemoryRemedy(config, need, {.world = 4, .ranks_here = 2}, size(TrainingMemory(config, sharded).total()) - 1),
      absl::StrCat(head, "zero=1, with which each has ", less, " bytes less of them, is not enough; ", more));
  EXPECT_EQ(MemoryRemedy(config, need, {.world = 4, .ranks_here = 2}, size(TrainingMemory(config, sharded).total())),
            absl::StrCat(head, "zero=1, with which each has ", less, " bytes less of them, is enough"));
  const TrainingBytes after = TrainingMemory(config, sharded);
  EXPECT_EQ(MemoryRemedy(config, sharded, {.world = 4, .ranks_here = 2}, 0),
            absl::StrCat("most are parameters that every worker has, ",
                         size(after.weights + after.parameters - after.experts), " bytes: ", more));
}

}  // namespace
}  // namespace switchyard::train
