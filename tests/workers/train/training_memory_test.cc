// What a training is thought to take, beside what it does take.
#include "workers/train/training_memory.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/train/fake_state_file.h"
#include "tests/workers/train/training_group.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

class TrainingMemoryTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Goldens, TrainingMemoryTest, testing::ValuesIn(TrainingGoldenNames()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(TrainingMemoryTest, KnowsParametersAndWeights) {
  const TrainingGolden golden = LoadTrainingGolden(GetParam());
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(golden.dir);
  ASSERT_TRUE(config.ok());
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
    TrainingGroup group(golden.dir, {.dtype = dtype});
    const Parameters& parameters = group.parameters(0);
    const TrainingBytes bytes =
        TrainingMemory(*config, {.dtype = dtype, .experts_per_layer = config->num_experts, .rows = 1});
    EXPECT_EQ(bytes.parameters, 4 * parameters.num_values() * DTypeBytes(AccDType(dtype)));
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
      EXPECT_EQ(block.master.bytes() == 0, block.shard == Shard::kExpert);
    }
    EXPECT_EQ(less.offloaded, (*rest)->offload()->counters().bytes);
    const int64_t layers = config->num_moe_layers();
    EXPECT_EQ(less.parameters, kept + less.offloaded * std::min<int64_t>(layers, 2) / layers);
    EXPECT_EQ(bytes.weights, 2 * parameters.num_values() * DTypeBytes(dtype));
  }
}

TEST_P(TrainingMemoryTest, RowsCostWhatIsKeptOfThem) {
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(LoadTrainingGolden(GetParam()).dir);
  ASSERT_TRUE(config.ok());
  const auto activations = [&](int64_t rows, bool recompute) {
    return TrainingMemory(*config, {.experts_per_layer = 1, .rows = rows, .recompute = recompute}).activations;
  };
  EXPECT_EQ(activations(0, false), 0);
  EXPECT_EQ(activations(100, false), 100 * activations(1, false));
  EXPECT_LT(activations(1, true), activations(1, false));
}

TEST_P(TrainingMemoryTest, SaysWhatIsNeededAndWhatIsThere) {
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(LoadTrainingGolden(GetParam()).dir);
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
  ModelConfig absurd = *config;
  absurd.hidden = absurd.vocab_size = int64_t{1} << 40;
  EXPECT_TRUE(absl::IsResourceExhausted(CheckTrainingMemory(absurd, need, int64_t{1} << 62)));
}

}  // namespace
}  // namespace switchyard
