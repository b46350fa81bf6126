// The memory of a device that weights take: one allocation, of the size that the plan says.
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/control.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/fixture.h"
#include "workers/model/config/config_reader.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/weights/dummy_weights.h"

namespace switchyard::model {
namespace {

std::vector<int32_t> AllExpertsOf(const ModelConfig& config) {
  std::vector<int32_t> residents(static_cast<size_t>(config.num_experts));
  std::iota(residents.begin(), residents.end(), 0);
  return residents;
}

// Layers with other formats by turns, each of their matrices another one.
ops::WeightFormats OfEachLayer(const ModelConfig& config) {
  using ops::WeightFormat;
  ops::WeightFormats formats(WeightFormat::kQ8_0);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    formats.layers.push_back(i % 2 == 0
                                 ? ops::LayerFormats{WeightFormat::kQ6_K, WeightFormat::kInt4, WeightFormat::kQ8_0,
                                                     WeightFormat::kPlain, WeightFormat::kQ4_1, WeightFormat::kQ8_0}
                                 : ops::LayerFormats{WeightFormat::kQ4_1, WeightFormat::kPlain, WeightFormat::kInt4,
                                                     WeightFormat::kQ6_K, WeightFormat::kQ8_0, WeightFormat::kQ4_1});
  }
  return formats;
}

TEST(DeviceMemoryTest, WeightsTakeOneAllocationAsPlanned) {
  using ops::WeightFormat;
  for (const std::string& name : FixtureNames()) {
    const auto config = ReadModelConfig(LoadFixture(name).dir);
    ASSERT_TRUE(config.ok()) << config.status();
    for (const ops::WeightType& type : {ops::WeightType(DType::kBf16), ops::WeightType(DType::kF32),
                                        ops::WeightType(DType::kBf16, WeightFormat::kInt4),
                                        ops::WeightType(DType::kF16, {WeightFormat::kQ8_0, WeightFormat::kQ4_1,
                                                                      WeightFormat::kQ6_K, WeightFormat::kQ8_0}),
                                        ops::WeightType(DType::kBf16, OfEachLayer(*config))}) {
      const size_t before = cuda_emulation::MemoryInUse(0);
      {
        const auto weights = AllocateWeights(*config, type, AllExpertsOf(*config), TestDevice());
        ASSERT_TRUE(weights.ok()) << weights.status();
        const auto taken = static_cast<int64_t>(cuda_emulation::MemoryInUse(0) - before);
        EXPECT_EQ(WeightBytes(*config, type, config->num_experts, DeviceKind::kCuda), absl::int128(taken))
            << name << " " << ToString(type);
        EXPECT_EQ(weights->arena.bytes(), taken) << name;
        EXPECT_LE(weights->bytes(), taken) << name;
      }
      EXPECT_EQ(cuda_emulation::MemoryInUse(0), before);
    }
  }
}

TEST(DeviceMemoryTest, AllocationsDoNotGrowWithLayersAndExperts) {
  auto config = ReadModelConfig(LoadFixture("qwen2-shared").dir);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto count = [&] {
    LoadOptions options;
    options.dtype = DType::kBf16;
    options.device = TestDevice();
    options.residents = AllExpertsOf(*config);
    cuda_emulation::CountCalls();
    const auto weights = MakeDummyWeights(*config, std::move(options));
    EXPECT_TRUE(weights.ok()) << weights.status();
    const void* const last = weights->layers.back().moe->experts.back().down.data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(last) % kDeviceAlignment, 0U);
    return cuda_emulation::CountedCalls()["cudaMalloc"];
  };
  const int64_t small = count();
  const auto layers = config->layers;
  config->layers.insert(config->layers.end(), layers.begin(), layers.end());
  config->num_experts *= 2;
  EXPECT_EQ(count(), small);
  EXPECT_EQ(small, 1);
}

TEST(DeviceMemoryTest, WeightsThatDoNotFitSayHowMuchTheyNeed) {
  const auto config = ReadModelConfig(LoadFixture("qwen2-shared").dir);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto needed = static_cast<int64_t>(WeightBytes(*config, DType::kBf16, 6, DeviceKind::kCuda));
  cuda_emulation::SetMemoryCapacity(cuda_emulation::MemoryInUse(0) + static_cast<size_t>(needed) - 1);
  const auto weights = AllocateWeights(*config, DType::kBf16, {0, 1, 2, 3, 4, 5}, TestDevice());
  cuda_emulation::Reset();
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(weights.status().message()),
              testing::HasSubstr("needed " + std::to_string(needed) + " bytes, available "));
}

}  // namespace
}  // namespace switchyard::model
