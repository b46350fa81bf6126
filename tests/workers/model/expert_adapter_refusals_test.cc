// Adapters of experts that are refused since some experts would get none, or another one than PEFT gives them; and
// sizes that nobody reads.
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/checkpoint/safetensors_bytes.h"
#include "tests/workers/model/expert_adapters.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/adapters/lora_adapter.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/adapters.h"
#include "workers/model/weights/loader.h"

namespace switchyard::model {
namespace {

using checkpoint::LoraAdapter;
using testing::HasSubstr;

constexpr char kAdapters[] = "tests/golden/adapters/", kModels[] = "tests/golden/models/";

// A copy of an adapter's folder in which a test changes configuration and tensors.
class ExpertAdapterRefusalsTest : public testing::Test {
 protected:
  void Copy(const std::string& name) {
    config_ = ReadFileBytes(absl::StrCat(kAdapters, name, "/adapter_config.json"));
    tensors_ = AdapterTensors(kAdapters + name);
    dir_.Write("adapter_model.safetensors", checkpoint::SafetensorsBytes(tensors_));
    dir_.Write("adapter_config.json", config_);
  }
  void Change(const std::string& from, const std::string& to) {
    EXPECT_THAT(config_, HasSubstr(from));
    dir_.Write("adapter_config.json", absl::StrReplaceAll(config_, {{from, to}}));
  }
  // Leaves out the tensors whose names contain `part`.
  void Drop(const std::string& part) {
    WrittenTensors left = tensors_;
    EXPECT_GT(std::erase_if(left, [&](const auto& tensor) { return absl::StrContains(tensor.first, part); }), 0u);
    dir_.Write("adapter_model.safetensors", checkpoint::SafetensorsBytes(left));
  }
  // What opening it says; "": nothing.
  std::string Opened() const { return std::string(LoraAdapter::Open(dir_.path()).status().message()); }
  // What merging it into a model says, as a worker does before it loads (some: of one rank's experts alone).
  std::string Merged(const std::string& model, bool some = false) const {
    const auto adapter = LoraAdapter::Open(dir_.path());
    if (!adapter.ok()) return std::string(adapter.status().message());
    const ModelConfig config = *ReadModelConfig(kModels + model);
    const auto checkpoint = checkpoint::Checkpoint::Open(kModels + model);
    SY_CHECK_OK(checkpoint.status());
    std::vector<int32_t> experts;
    for (int32_t e = 0; e < (some ? 1 : config.num_experts); ++e) experts.push_back(e);
    auto weights = AllocateWeights(config, DType::kF32, experts);
    SY_CHECK_OK(weights.status());
    auto params = BuildParams(config, *FindFamily(config.model_type), *checkpoint, &*weights);
    SY_CHECK_OK(params.status());
    return std::string(MergeAdapter(config, **adapter, *checkpoint, &*params, some).message());
  }

  TempDir dir_;
  std::string config_;
  WrittenTensors tensors_;
};

// Both models have the adapter's widths; before, the first experts were adapted and the rest not.
TEST_F(ExpertAdapterRefusalsTest, OfAnotherNumberOfExperts) {
  Copy("experts-mixtral-window");
  EXPECT_EQ(Merged("mixtral-window"), "");
  for (const bool some : {false, true}) {
    EXPECT_THAT(Merged("mixtral-fused", some),
                HasSubstr("its lora_A of experts is of 4 experts (rows by r in adapter_config.json), the model has 8"));
  }
  Copy("experts-olmoe-clip");
  EXPECT_EQ(Merged("olmoe-clip"), "");
  EXPECT_THAT(Merged("mixtral-window"),
              HasSubstr("is of 8 experts (rows by r in adapter_config.json), the model has 4"));
}

// r says where an expert's rows end: another one that divides them mixes experts.
TEST_F(ExpertAdapterRefusalsTest, OfAnotherRank) {
  Copy("experts-qwen2-shared");
  EXPECT_EQ(Merged("qwen2-shared"), "");
  for (const auto& [rank, experts] : {std::make_pair(6, 3), std::make_pair(2, 9), std::make_pair(1, 18)}) {
    Change("\"r\": 3", absl::StrCat("\"r\": ", rank));
    EXPECT_THAT(Merged("qwen2-shared"), HasSubstr(absl::StrCat("is of ", experts, " experts")));
    EXPECT_THAT(Merged("qwen2-shared"), HasSubstr("the model has 6"));
  }
  Copy("experts-olmoe-clip");
  for (const auto& [rank, experts] : {std::make_pair(8, 4), std::make_pair(2, 16)}) {
    Change("\"rank_pattern\": {}",
           absl::StrCat(R"("rank_pattern": {"gate_up_proj": )", rank, R"(, "down_proj": )", rank, "}"));
    EXPECT_THAT(Merged("olmoe-clip"), HasSubstr(absl::StrCat("is of ", experts, " experts")));
  }
  // Of one of the two alone.
  Change("\"rank_pattern\": {}", R"("rank_pattern": {"down_proj": 8})");
  EXPECT_THAT(Opened(), testing::AllOf(HasSubstr("is [32, "), HasSubstr(" experts, but \""), HasSubstr("\" is of ")));
}

TEST_F(ExpertAdapterRefusalsTest, WithoutTensorsOfWhatItNames) {
  Copy("experts-olmoe-clip");
  Drop(".base_layer.");
  EXPECT_EQ(Opened(),
            "adapter_model.safetensors: has no adapters of experts' gate_up_proj of model.layers.0, which "
            "target_parameters in adapter_config.json names");
  Drop("layers.1.mlp.experts.base_layer.");
  EXPECT_THAT(Opened(), HasSubstr("experts' gate_up_proj of model.layers.1, which"));
  Drop("layers.1.mlp.experts.lora_");
  EXPECT_THAT(Opened(), HasSubstr("experts' down_proj of model.layers.1, which"));
  Drop("layers.1.mlp.experts.");
  EXPECT_THAT(Merged("olmoe-clip"), HasSubstr("it has adapters of experts' gate_up_proj of model.layers.0, and none of "
                                              "model.layers.1"));
  Drop(".mlp.experts.");
  EXPECT_THAT(Opened(), HasSubstr("has no adapters of experts' gate_up_proj, which"));
  Drop("layers.0.mlp.experts.base_layer.lora_B");
  EXPECT_THAT(Opened(), HasSubstr("its lora_B is missing"));
}

// PEFT had A and B of experts the other way round before 0.19.1, and no version in the file before 0.18.
TEST_F(ExpertAdapterRefusalsTest, OfEarlierVersionsOfPeft) {
  Copy("experts-olmoe-clip");
  for (const char* const version : {"0.18.1", "0.19.0", "0.19", "0.19.1.dev0@6030f91", "0.19.1rc1", "0", "", "new"}) {
    Change("\"0.21.2\"", absl::StrCat("\"", version, "\""));
    EXPECT_EQ(Opened(), absl::StrCat("adapter_config.json: peft_version: \"", version,
                                     "\"; with target_parameters 0.19.1 or later is wanted, as lora_A and lora_B of "
                                     "experts were the other way round before"));
  }
  Change("\"peft_version\": \"0.21.2\",", "");
  EXPECT_THAT(Opened(), HasSubstr("peft_version: is missing; with target_parameters 0.19.1 or later is wanted"));
  Change("\"0.21.2\"", "null");
  EXPECT_THAT(Opened(), HasSubstr("peft_version: null; with"));
  for (const char* const version : {"0.19.1", "0.19.1.post1", "0.20.0", "0.20.0.dev0@UNKNOWN", "0.20", "1", "10.0.0"}) {
    Change("\"0.21.2\"", absl::StrCat("\"", version, "\""));
    EXPECT_EQ(Opened(), "") << version;
  }
  // Adapters of attention have always been as they are.
  Copy("lora-olmoe-clip");
  Change("\"0.21.2\"", "\"0.11.0\"");
  EXPECT_EQ(Opened(), "");
  Change("\"peft_version\": \"0.21.2\",", "");
  EXPECT_EQ(Opened(), "");
}

// A pattern that does not say "experts" is also about other modules of that name.
TEST_F(ExpertAdapterRefusalsTest, WithPatternsOfOtherModules) {
  Copy("experts-qwen2-shared");
  constexpr char kShared[] = "base_model.model.model.layers.0.mlp.shared_expert.down_proj";
  tensors_[absl::StrCat(kShared, ".lora_A.weight")] = checkpoint::FloatTensor("F32", {3, 1}, {1, 2, 3});
  tensors_[absl::StrCat(kShared, ".lora_B.weight")] = checkpoint::FloatTensor("F32", {1, 3}, {1, 2, 3});
  dir_.Write("adapter_model.safetensors", checkpoint::SafetensorsBytes(tensors_));
  const auto with = [&](const std::string& alphas) {
    Change("\"alpha_pattern\": {}", absl::StrCat("\"alpha_pattern\": ", alphas));
    return Opened();
  };
  EXPECT_EQ(with("{}"), "");
  for (const char* const pattern : {"down_proj", R"(.*\\.down_proj)"}) {
    EXPECT_EQ(with(absl::StrCat("{\"", pattern, "\": 2}")),
              "adapter_config.json: rank_pattern, alpha_pattern: \"down_proj\" is also about "
              "model.layers.0.mlp.shared_expert.down_proj, for which it is not supported; \"mlp.experts.down_proj\" is "
              "about experts alone");
  }
  for (const char* const pattern : {"mlp.experts.down_proj", "experts.down_proj", R"(.*\\.experts.down_proj)"}) {
    EXPECT_EQ(with(absl::StrCat("{\"", pattern, "\": 2}")), "") << pattern;
  }
  EXPECT_EQ(with(R"({"gate_up_proj": 2})"), "");
  EXPECT_THAT(with(R"({"mlp.down_proj": 2})"), HasSubstr("alpha_pattern: {\"mlp.down_proj\":2} is not supported"));
  EXPECT_THAT(with(R"({"experts.down_proj": 2, "down_proj": 3})"), HasSubstr("has two patterns of down_proj"));
}

TEST_F(ExpertAdapterRefusalsTest, ThatAreTooLarge) {
  Copy("experts-olmoe-clip");
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += static_cast<int64_t>(tensor.bytes.size());
  EXPECT_TRUE(LoraAdapter::Open(dir_.path(), bytes).ok());
  const absl::Status refused = LoraAdapter::Open(dir_.path(), bytes - 1).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat(" has ", bytes, " bytes of values in fp32, ",
                                                                     bytes - 1, " bytes of memory are available")));
  // One row of fp16 more than 64 GiB in fp32, in a file of holes.
  const std::string header =
      R"({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight":{"dtype":"F16","shape":[4,4294967297],)"
      R"("data_offsets":[0,34359738376]}})";
  const std::string file = dir_.Write("adapter_model.safetensors", checkpoint::SafetensorsBytes(header, ""));
  std::filesystem::resize_file(file, std::filesystem::file_size(file) + 34359738376);
  EXPECT_EQ(Opened(), "adapter_model.safetensors: has 68719476752 bytes of values in fp32, at most 68719476736");
}

// What a job may train is what a server reads.
TEST(AdapterTargetsTest, AreAtMostWhatAServerReads) {
  ModelConfig config = *ReadModelConfig("tests/golden/models/olmoe-clip");
  AdapterDesc desc = {.rank = 1024, .targets = {"q_proj"}};
  config.num_heads = 1;
  config.head_dim = (int64_t{1} << 23) - config.hidden;  // 2 layers * 1024 * 2^23 * 4 bytes
  EXPECT_EQ(CheckAdapterTargets(config, desc).message(), "");
  ++config.head_dim;
  EXPECT_EQ(std::string(CheckAdapterTargets(config, desc).message()),
            "lora.rank: 1024: adapters of q_proj have 68719484928 bytes in fp32, a server reads at most "
            "68719476736");
  config = *ReadModelConfig("tests/golden/models/olmoe-clip");
  desc.targets = {"gate_up_proj", "down_proj"};
  config.num_experts = 128;
  config.layers.resize(48);
  config.hidden = 2048;
  config.expert_intermediate = 768;  // Qwen3-30B-A3B's: 157 MB in fp32 for each of r
  desc.rank = 436;
  EXPECT_EQ(CheckAdapterTargets(config, desc).message(), "");
  desc.rank = 437;
  EXPECT_THAT(std::string(CheckAdapterTargets(config, desc).message()),
              HasSubstr("lora.rank: 437: adapters of gate_up_proj, down_proj have 68734156800 bytes"));
}

TEST(AdapterTargetsTest, WantExpertsWithSwiGlu) {
  const ModelConfig config = *ReadModelConfig("tests/golden/models/gpt2-top1");
  EXPECT_EQ(std::string(CheckAdapterTargets(config, {.rank = 4, .targets = {"down_proj"}}).message()),
            "lora.targets: down_proj: experts of gpt2_moe have GELU; adapters are for experts with SwiGLU and without "
            "biases");
  EXPECT_EQ(CheckAdapterTargets(config, {.rank = 4, .targets = {"q_proj"}}).message(), "");
}

}  // namespace
}  // namespace switchyard::model
