// Experts that are loaded into memory of the caller, and which experts can be.
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/small_checkpoint.h"
#include "workers/model/weights/dummy_weights.h"
#include "workers/model/weights/loader.h"
#include "workers/moe/experts/packed_expert.h"

namespace switchyard::model {
namespace {

using ::testing::HasSubstr;

// Their biases have no place in an expert's packed form.
TEST(LoaderTest, ExpertsWithBiasesAreNotForStores) {
  const auto gpt2 = ReadModelConfig(LoadFixture("gpt2-top1").dir),
             mixtral = ReadModelConfig(LoadFixture("mixtral-gqa").dir);
  EXPECT_TRUE(CheckStorable(*mixtral).ok());
  const absl::Status status = CheckStorable(*gpt2);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("experts of gpt2_moe are gelu ones with biases"));
}

// Biases of gated experts lie in the weights, so that these are in an expert's packed form.
TEST(LoaderTest, GptOssExpertsWithBiasesAreForStores) {
  for (const char* name : {"gptoss-plain", "gptoss-mxfp4"}) {
    const Fixture fixture = LoadFixture(name);
    const auto config = ReadModelConfig(fixture.dir);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(CheckStorable(*config).ok());
    const auto checkpoint = checkpoint::Checkpoint::Open(fixture.dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const ops::WeightFormat format : {ops::WeightFormat::kPlain, ops::WeightFormat::kInt8}) {
      const moe::PackedExpert packed(config->hidden, config->expert_intermediate, {DType::kBf16, format, format},
                                     DeviceKind::kCpu, /*bias=*/true);
      const auto options = [&] {
        LoadOptions load;
        load.dtype = DType::kBf16;
        load.format = format;
        for (int32_t e = 0; e < config->num_experts; ++e) load.residents.push_back(e);
        return load;
      };
      const auto whole = LoadWeights(*checkpoint, *config, options());
      ASSERT_TRUE(whole.ok()) << whole.status();
      const Tensor memory = Tensor::Zeros(DType::kU8, {config->num_experts * packed.bytes});
      const auto at = [&](int32_t expert) {
        return reinterpret_cast<char*>(memory.data<uint8_t>()) + expert * packed.bytes;
      };
      const absl::Status status = LoadExperts(*checkpoint, *config, options(), [&](int layer, int32_t expert) {
        return layer == 1 ? at(expert) : nullptr;
      });
      ASSERT_TRUE(status.ok()) << status;
      for (int32_t e = 0; e < config->num_experts; ++e) {
        const FfnWeights& expert = whole->layers[1].moe->experts[static_cast<size_t>(e)];
        EXPECT_EQ(std::memcmp(at(e), expert.gate_up.data(), expert.gate_up.bytes()), 0) << name << " " << e;
        EXPECT_EQ(std::memcmp(at(e) + packed.down_offset, expert.down.data(), expert.down.bytes()), 0) << e;
      }
    }
  }
}

TEST(LoaderTest, GptOssMisfitsAreNamed) {
  const Fixture fixture = LoadFixture("gptoss-plain");
  auto config = ReadModelConfig(fixture.dir);
  const auto checkpoint = checkpoint::Checkpoint::Open(fixture.dir);
  ASSERT_TRUE(config.ok() && checkpoint.ok());
  config->expert_intermediate += 1;
  config->num_heads -= 1;
  LoadOptions load;
  load.residents = {0};
  const auto loaded = LoadWeights(*checkpoint, *config, std::move(load));
  ASSERT_FALSE(loaded.ok());
  for (const char* part :
       {"tensor \"model.layers.0.mlp.experts.gate_up_proj\": expected [5, 48, 50], found [5, 48, 48]",
        "tensor \"model.layers.0.self_attn.sinks\": expected [3], found [4]",
        "tensor \"model.layers.0.mlp.experts.gate_up_proj_bias\": expected [5, 50], found [5, 48]"}) {
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(part));
  }
}

// Experts in somebody else's memory: the bytes of those that a rank holds itself, and nothing for the rest.
class LoadedExpertsTest : public testing::TestWithParam<DType> {
 protected:
  // Zeroed and aligned, for expert `expert` of the one layer.
  char* PlaceOf(int layer, int32_t expert) {
    EXPECT_EQ(layer, 0);
    return reinterpret_cast<char*>(memory_.data<uint8_t>()) + expert * packed_.bytes;
  }
  void ExpectTheBytesOf(const ModelWeights& weights) {
    for (int e = 0; e < kExperts; ++e) {
      const FfnWeights& expert = weights.layers[0].moe->experts[e];
      const char* const at = reinterpret_cast<const char*>(memory_.data<uint8_t>()) + e * packed_.bytes;
      EXPECT_EQ(std::memcmp(at, expert.gate_up.data(), expert.gate_up.bytes()), 0) << e;
      EXPECT_EQ(std::memcmp(at + packed_.down_offset, expert.down.data(), expert.down.bytes()), 0) << e;
    }
  }

  const moe::PackedExpert packed_{kHidden, kWidth, GetParam(), DeviceKind::kCpu};
  const Tensor memory_ = Tensor::Zeros(DType::kU8, {kExperts * packed_.bytes});
};

INSTANTIATE_TEST_SUITE_P(DTypes, LoadedExpertsTest, testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& i) { return std::string(DTypeName(i.param)); });

TEST_P(LoadedExpertsTest, AreThoseOfARank) {
  for (const bool fused : {false, true}) {
    TempDir dir;
    dir.Write("model.safetensors", checkpoint::SafetensorsBytes(SmallTensors("F32", fused)));
    const auto checkpoint = checkpoint::Checkpoint::Open(dir.path());
    ASSERT_TRUE(checkpoint.ok());
    const auto whole = LoadWeights(*checkpoint, SmallConfig(), AllExperts(GetParam()));
    ASSERT_TRUE(whole.ok()) << whole.status();
    // All at once, or some at a time: those without a place are left out.
    for (const int parts : {1, 2}) {
      std::memset(memory_.data<uint8_t>(), 0, memory_.bytes());
      for (int part = 0; part < parts; ++part) {
        const absl::Status status = LoadExperts(
            *checkpoint, SmallConfig(), AllExperts(GetParam()),
            [&](int layer, int32_t expert) { return expert % parts == part ? PlaceOf(layer, expert) : nullptr; });
        ASSERT_TRUE(status.ok()) << status;
      }
      ExpectTheBytesOf(*whole);
    }
    LoadOptions rest = AllExperts(GetParam());
    rest.experts = false;
    const auto without = LoadWeights(*checkpoint, SmallConfig(), std::move(rest));
    ASSERT_TRUE(without.ok()) << without.status();
    EXPECT_TRUE(without->layers[0].moe->experts.empty());
    EXPECT_EQ(without->residents, whole->residents);
    EXPECT_EQ(Rows(without->layers[0].moe->router), Rows(whole->layers[0].moe->router));
  }
}

TEST_P(LoadedExpertsTest, AreThoseOfARankWhenRandom) {
  const auto whole = MakeDummyWeights(SmallConfig(), AllExperts(GetParam()));
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (int part = 0; part < 2; ++part) {
    const absl::Status status = MakeDummyExperts(SmallConfig(), AllExperts(GetParam()), [&](int layer, int32_t expert) {
      return expert % 2 == part ? PlaceOf(layer, expert) : nullptr;
    });
    ASSERT_TRUE(status.ok()) << status;
  }
  ExpectTheBytesOf(*whole);
}

}  // namespace
}  // namespace switchyard::model
