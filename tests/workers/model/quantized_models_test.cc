// Whole models from quantized checkpoints (tests/golden/quantized/models): against transformers on the weights that the
// format's reference decodes, on any number of ranks, and what is refused.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/expert_adapters.h"
#include "tests/workers/model/quantized_goldens.h"
#include "tests/workers/model/rank_group.h"
#include "tests/workers/model/small_checkpoint.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/adapters.h"
#include "workers/model/weights/serving_type.h"
#include "workers/model/weights/unused_tensors.h"

namespace switchyard::model {
namespace {

using ::testing::HasSubstr;

constexpr char kModels[] = "tests/golden/quantized/models/";
constexpr double kTolerance = 1e-4;  // of the largest logit

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class QuantizedModelsTest : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string dir_ = kModels + GetParam();
};

TEST_P(QuantizedModelsTest, LogitsAreThoseOfTransformersOnTheDecodedWeights) {
  const auto tokens = ReadGolden<int32_t>(dir_, "tokens");
  const auto golden = ReadGolden<float>(dir_, "values");
  RankGroup group(dir_, {.dtype = DType::kF32});
  const std::vector<double> found = group.Logits(tokens);
  ASSERT_EQ(found.size(), golden.size());
  double largest = 0, distance = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max<double>(largest, std::abs(golden[i]));
    if (!(std::abs(found[i] - golden[i]) <= distance)) distance = std::abs(found[i] - golden[i]);
  }
  RecordProperty("distance", std::to_string(distance / largest));
  EXPECT_LE(distance, kTolerance * largest);
}

TEST_P(QuantizedModelsTest, AnswersDoNotDependOnRanksThreadsOrSlots) {
  const std::vector<std::vector<int32_t>> prompts = {{5, 9, 12}, {33}, {7, 7, 40, 61, 3}};
  RankGroup one(dir_, {.dtype = DType::kBf16});
  const auto expected = one.Greedy(prompts, 12);
  RankGroup two(dir_, {.dtype = DType::kBf16, .world = 2, .threads = 2, .chunk = 2, .batch = 2});
  EXPECT_EQ(two.Greedy(prompts, 12), expected);
  RankGroup offloaded(dir_, {.dtype = DType::kBf16, .expert_slots = 2});
  EXPECT_EQ(offloaded.Greedy(prompts, 12), expected);
}

TEST_P(QuantizedModelsTest, EveryTensorIsUsedAndTheDtypeIsTheConfigs) {
  const auto config = ReadModelConfig(dir_);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto checkpoint = checkpoint::Checkpoint::Open(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(*ServingDType("auto", *config, *checkpoint), DType::kBf16);
  auto weights = AllocateWeights(*config, DType::kBf16, {0, 1, 2, 3});
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto params = BuildParams(*config, *FindFamily("qwen3_moe"), *checkpoint, &*weights);
  ASSERT_TRUE(params.ok()) << params.status();
  EXPECT_THAT(UnusedTensors(*checkpoint, *params), testing::IsEmpty());
  EXPECT_THAT(std::string(CheckAllUsed(*checkpoint, *config, *params).message()),
              testing::AllOf(HasSubstr("training from quantized weights (" + config->quantization->method + ")"),
                             HasSubstr("train from the model's bf16 or fp32 checkpoint")));
}

// An adapter of experts is added to the decoded matrices; those that it does not adapt are held as before.
TEST_P(QuantizedModelsTest, AdaptersAreAddedToDecodedExperts) {
  const auto config = ReadModelConfig(dir_);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto checkpoint = checkpoint::Checkpoint::Open(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto formats = [&](const checkpoint::LoraAdapter* adapter) {
    auto weights = AllocateWeights(*config, DType::kF32, {0, 1, 2, 3});
    SY_CHECK_OK(weights.status());
    auto params = BuildParams(*config, *FindFamily("qwen3_moe"), *checkpoint, &*weights);
    SY_CHECK_OK(params.status());
    if (adapter != nullptr) SY_CHECK_OK(MergeAdapter(*config, *adapter, *checkpoint, &*params));
    return StoredFormats(*params, *weights);
  };
  const auto load = [&](const checkpoint::LoraAdapter* adapter, const ops::WeightFormats& format) {
    LoadOptions options;
    options.dtype = DType::kF32;
    options.format = format;
    options.residents = {0, 1, 2, 3};
    options.adapter = adapter;
    auto weights = LoadWeights(*checkpoint, *config, std::move(options));
    SY_CHECK_OK(weights.status());
    return *std::move(weights);
  };
  const ops::WeightFormats was = formats(nullptr);
  const ops::LayerFormats& layer_was = was.of(0);
  const ModelWeights base = load(nullptr, {}), held = load(nullptr, was);
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"gate_up_proj", "down_proj"}, {"gate_up_proj"}, {"down_proj"}}) {
    SCOPED_TRACE(testing::PrintToString(targets));
    const TempDir dir;
    WriteExpertAdapter(*config, targets, dir);
    const auto adapter = checkpoint::LoraAdapter::Open(dir.path());
    ASSERT_TRUE(adapter.ok()) << adapter.status();
    const bool gate_up = targets[0] == "gate_up_proj", down = targets.back() == "down_proj";
    const ops::WeightFormats is = formats(adapter->get());
    EXPECT_EQ(is, ops::WeightFormats(layer_was.qkv, gate_up ? ops::WeightFormat::kPlain : layer_was.gate_up,
                                     down ? ops::WeightFormat::kPlain : layer_was.down, was.head));
    const ModelWeights merged = load(adapter->get(), is);
    for (int64_t e = 0; e < config->num_experts; ++e) {
      const FfnWeights& found = merged.layers[0].moe->experts[e];
      const auto expect = [&](const char* name, ops::Weight FfnWeights::*matrix, bool adapted) {
        const FfnWeights& from = (adapted ? base : held).layers[0].moe->experts[e];
        EXPECT_EQ(UnpackedRows(found.*matrix), MergedExpert(**adapter, 0, e, name, from.*matrix))
            << name << " of " << e;
      };
      expect("gate_up_proj", &FfnWeights::gate_up, gate_up);
      expect("down_proj", &FfnWeights::down, down);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedModelsTest, ::testing::Values("fp8", "int4", "int8", "float", "gptq", "awq"),
                         [](const auto& each) { return each.param; });

// A checkpoint whose bits another config reads otherwise has another fingerprint: files that were made of it are not
// taken for those of this one.
TEST(QuantizedCheckpointTest, TheFingerprintHasTheReading) {
  const std::string dir = std::string(kModels) + "gptq";
  const auto config = ReadModelConfig(dir);
  const std::string text = ReadText(dir + "/config.json");
  const auto other = ParseModelConfig(
      absl::StrReplaceAll(text, {{R"("quant_method": "gptq",)", R"("quant_method": "gptq", "format": "gptq_v2",)"}}),
      "");
  ASSERT_TRUE(config.ok() && other.ok());
  const auto checkpoint = checkpoint::Checkpoint::Open(dir);
  EXPECT_NE(checkpoint->Hash(config->reading()), checkpoint->Hash(other->reading()));
  EXPECT_NE(checkpoint->Stamp(config->reading()), checkpoint->Stamp(other->reading()));
  EXPECT_NE(checkpoint->Hash(config->reading()), checkpoint->Hash());
  EXPECT_EQ(checkpoint->Hash(""), checkpoint->Hash());
}

// The small OLMoE checkpoint with one projection in fp8.
Tensors WithFp8(const std::string& module, uint8_t code) {
  Tensors tensors = SmallTensors("BF16", false);
  const std::vector<int64_t> shape = tensors.at(module + ".weight").shape;
  tensors[module + ".weight"] = {"F8_E4M3", shape,
                                 std::string(static_cast<size_t>(shape[0] * shape[1]), static_cast<char>(code))};
  tensors[module + ".weight_scale_inv"] = checkpoint::FloatTensor("F32", {2, 2}, {1, 2, 4, 8});
  return tensors;
}

ModelConfig Fp8Config() {
  ModelConfig config = SmallConfig();
  config.quantization = checkpoint::QuantizationConfig{
      .method = "fp8",
      .weights = {{.scope = checkpoint::ScaleScope::kBlock, .block_rows = 4, .block_columns = 4}},
      .unconverted = {}};
  return config;
}

constexpr char kModule[] = "model.layers.0.self_attn.q_proj";

TEST(QuantizedCheckpointTest, BlocksHaveTheirScales) {
  const auto weights = Load(WithFp8(kModule, 0x40), AllExperts(DType::kBf16), Fp8Config());  // 2
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<float> q = Rows(weights->layers[0].attention.qkv);
  q.resize(8 * kHidden);
  std::vector<float> expected;
  for (int row = 0; row < 8; ++row) {
    for (int column = 0; column < 8; ++column)
      expected.push_back(static_cast<float>((row < 4 ? 2 : 8) << (column / 4)));
  }
  EXPECT_EQ(q, expected);
}

TEST(QuantizedCheckpointTest, ErrorsNameTensorAndPlace) {
  const auto error = [](const Tensors& tensors, const ModelConfig& config) {
    return std::string(Load(tensors, AllExperts(DType::kBf16), config).status().message());
  };
  EXPECT_THAT(error(WithFp8(kModule, 0x7f), Fp8Config()),
              HasSubstr("model.safetensors: tensor \"model.layers.0.self_attn.q_proj.weight\": expected finite values "
                        "that bf16 can hold, found nan at row 0, column 0"));
  EXPECT_THAT(error(WithFp8(kModule, 0x40), SmallConfig()), HasSubstr("expected BF16, F16, F32 or F64, found F8_E4M3"));
  Tensors tensors = WithFp8(kModule, 0x40);
  tensors.erase(std::string(kModule) + ".weight_scale_inv");
  EXPECT_THAT(error(tensors, Fp8Config()),
              HasSubstr("tensor \"model.layers.0.self_attn.q_proj.weight_scale\": expected"));
  tensors = WithFp8(kModule, 0x7e);
  tensors[std::string(kModule) + ".weight_scale_inv"] = checkpoint::FloatTensor("F32", {2, 2}, {1, 1e37f, 1, 1});
  EXPECT_THAT(error(tensors, Fp8Config()), HasSubstr("found inf at row 0, column 4"));
}

// A checkpoint for kernels with 8-bit activations and caches has their scales, too, which nothing here reads.
TEST(QuantizedCheckpointTest, ScalesOfActivationsAreNoUnknownTensors) {
  Tensors tensors = WithFp8(kModule, 0x40);
  tensors[std::string(kModule) + ".input_scale"] = checkpoint::FloatTensor("F32", {1}, {1});
  testing::internal::CaptureStderr();
  EXPECT_TRUE(Load(tensors, AllExperts(DType::kBf16), Fp8Config()).ok());
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      testing::AllOf(testing::Not(HasSubstr("not part of")),
                     HasSubstr("weights are stored as fp8: fp8, 8 bits, blocks of 4 x 4; they are decoded to bf16")));
}

// The sums that ranks compare cover the scales, too.
TEST(QuantizedCheckpointTest, SumsAreOfTheValues) {
  TensorSums one, two;
  LoadOptions options = AllExperts(DType::kBf16);
  options.replicated_sums = &one;
  Tensors tensors = WithFp8(kModule, 0x40);
  ASSERT_TRUE(Load(tensors, std::move(options), Fp8Config()).ok());
  tensors[std::string(kModule) + ".weight_scale_inv"] = checkpoint::FloatTensor("F32", {2, 2}, {1, 2, 4, 16});
  options = AllExperts(DType::kBf16);
  options.replicated_sums = &two;
  ASSERT_TRUE(Load(tensors, std::move(options), Fp8Config()).ok());
  const std::string name = std::string(kModule) + ".weight";
  EXPECT_NE(one.at(name), two.at(name));
  EXPECT_EQ(one.at("lm_head.weight"), two.at("lm_head.weight"));
}

}  // namespace
}  // namespace switchyard::model
