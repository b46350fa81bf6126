// Adapters of a folder that are merged into the weights of a model as it is loaded, and what is refused.
#include <cmath>
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
#include "tests/workers/model/expert_adapters.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/adapters/lora_adapter.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/adapters.h"
#include "workers/model/weights/loader.h"

namespace switchyard::model {
namespace {

using checkpoint::AdaptedMatrix;
using checkpoint::LoraAdapter;
using testing::HasSubstr;

constexpr char kAdapters[] = "tests/golden/adapters/", kModels[] = "tests/golden/models/";

struct Loaded {
  ModelConfig config;
  ModelWeights weights;
};

// experts: that it has; none: all.
Loaded Load(const std::string& model, const LoraAdapter* adapter, DType dtype = DType::kF32,
            ops::WeightFormats format = {}, const std::vector<int32_t>& experts = {}) {
  Loaded loaded = {.config = *ReadModelConfig(kModels + model), .weights = {}};
  const auto checkpoint = checkpoint::Checkpoint::Open(kModels + model);
  SY_CHECK_OK(checkpoint.status());
  LoadOptions options;
  options.dtype = dtype;
  options.format = format;
  options.num_threads = 2;
  options.adapter = adapter;
  options.residents = experts;
  for (int32_t e = 0; experts.empty() && e < loaded.config.num_experts; ++e) options.residents.push_back(e);
  auto weights = LoadWeights(*checkpoint, loaded.config, std::move(options));
  SY_CHECK_OK(weights.status());
  loaded.weights = *std::move(weights);
  return loaded;
}

std::vector<float> Rows(const ops::Weight& weight, int64_t first, int64_t count) {
  Tensor rows(DType::kF32, {count, weight.k()});
  SY_CHECK_OK(weight.UnpackRows(first, rows));
  return {rows.data<float>(), rows.data<float>() + count * weight.k()};
}

class MergedAdapterTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, MergedAdapterTest, testing::Values("olmoe-clip", "qwen2-shared", "mixtral-window"),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{"-", "_"}});
                         });

// To the bit the sum in double, rounded once.
TEST_P(MergedAdapterTest, IsAddedToWhatItAdapts) {
  const auto adapter = LoraAdapter::Open(absl::StrCat(kAdapters, "lora-", GetParam()));
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const Loaded plain = Load(GetParam(), nullptr), merged = Load(GetParam(), adapter->get());
  const ModelConfig& c = plain.config;
  int adapted = 0;
  for (size_t layer = 0; layer < plain.weights.layers.size(); ++layer) {
    const AttentionWeights &was = plain.weights.layers[layer].attention, &is = merged.weights.layers[layer].attention;
    const struct {
      const char* name;
      const ops::Weight *was, *is;
      int64_t first, rows;
    } kProjections[] = {{"q_proj", &was.qkv, &is.qkv, 0, c.q_width()},
                        {"k_proj", &was.qkv, &is.qkv, c.q_width(), c.kv_width()},
                        {"v_proj", &was.qkv, &is.qkv, c.q_width() + c.kv_width(), c.kv_width()},
                        {"o_proj", &was.o, &is.o, 0, c.hidden}};
    for (const auto& each : kProjections) {
      const auto found =
          (*adapter)->matrices().find(absl::StrCat("model.layers.", layer, ".self_attn.", each.name, ".weight"));
      std::vector<float> want = Rows(*each.was, each.first, each.rows);
      const std::vector<float> got = Rows(*each.is, each.first, each.rows);
      if (found != (*adapter)->matrices().end()) {
        const AdaptedMatrix& m = found->second;
        ++adapted;
        for (int64_t i = 0; i < m.rows; ++i) {
          for (int64_t j = 0; j < m.columns; ++j) {
            double sum = 0;
            for (int64_t r = 0; r < m.rank; ++r) {
              sum += m.scale * m.b[static_cast<size_t>(i * m.rank + r)] * m.a[static_cast<size_t>(r * m.columns + j)];
            }
            float& value = want[static_cast<size_t>(i * m.columns + j)];
            value = static_cast<float>(value + sum);
          }
        }
        EXPECT_NE(got, Rows(*each.was, each.first, each.rows));
      }
      EXPECT_EQ(got, want) << each.name << " of layer " << layer;
    }
  }
  EXPECT_EQ(adapted, static_cast<int>((*adapter)->matrices().size()));
}

struct ExpertsCase {
  const char *model, *adapter;
};

// Of experts that the checkpoint has one by one, and (mixtral-fused) of fused ones.
class MergedExpertsTest : public testing::TestWithParam<ExpertsCase> {};

INSTANTIATE_TEST_SUITE_P(Models, MergedExpertsTest,
                         testing::Values(ExpertsCase{"olmoe-clip", "experts-olmoe-clip"},
                                         ExpertsCase{"qwen2-shared", "experts-qwen2-shared"},
                                         ExpertsCase{"mixtral-window", "experts-mixtral-window"},
                                         ExpertsCase{"mixtral-fused", "experts-olmoe-clip"}),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param.model, {{"-", "_"}});
                         });

// Whichever experts a rank has, and where they are loaded apart from the rest.
TEST_P(MergedExpertsTest, AreAddedToEachExpert) {
  const auto adapter = LoraAdapter::Open(absl::StrCat(kAdapters, GetParam().adapter));
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_TRUE((*adapter)->adapts_experts());
  const Loaded plain = Load(GetParam().model, nullptr), merged = Load(GetParam().model, adapter->get());
  const Loaded some = Load(GetParam().model, adapter->get(), DType::kF32, {}, {1, 3});
  int adapted = 0;
  for (size_t i = 0; i < plain.weights.layers.size(); ++i) {
    if (!plain.weights.layers[i].moe.has_value()) continue;
    for (int32_t e = 0; e < plain.config.num_experts; ++e) {
      const FfnWeights& was = plain.weights.layers[i].moe->experts[static_cast<size_t>(e)];
      const FfnWeights& is = merged.weights.layers[i].moe->experts[static_cast<size_t>(e)];
      for (const auto& [name, matrix] :
           {std::make_pair("gate_up_proj", &FfnWeights::gate_up), std::make_pair("down_proj", &FfnWeights::down)}) {
        const std::vector<float> want = MergedExpert(**adapter, static_cast<int64_t>(i), e, name, was.*matrix);
        EXPECT_EQ(Rows(is.*matrix, 0, want.size() / (is.*matrix).k()), want) << name << " of " << e;
        adapted += want != Rows(was.*matrix, 0, (was.*matrix).n()) ? 1 : 0;
        if (e != 1 && e != 3) continue;
        const ops::Weight& alone = some.weights.layers[i].moe->experts[e == 1 ? 0 : 1].*matrix;
        EXPECT_EQ(Rows(alone, 0, alone.n()), want) << name << " of " << e << ", which is here";
      }
    }
  }
  int named = 0;
  for (const auto& [name, matrix] : (*adapter)->matrices()) named += absl::StrContains(name, ".experts.") ? 1 : 0;
  EXPECT_EQ(adapted, named);
}

// What is quantized is the sum, not the base.
TEST(MergedAdapterQuantizedTest, IsAddedBeforeWeightsAreQuantized) {
  for (const char* const name : {"lora-olmoe-clip", "experts-olmoe-clip"}) {
    const auto adapter = LoraAdapter::Open(absl::StrCat(kAdapters, name));
    ASSERT_TRUE(adapter.ok()) << adapter.status();
    const Loaded plain = Load("olmoe-clip", nullptr), exact = Load("olmoe-clip", adapter->get());
    const Loaded few = Load("olmoe-clip", adapter->get(), DType::kF32, ops::WeightFormat::kInt8);
    const auto far = [](const ops::Weight& held, const ops::Weight& weight) {
      const std::vector<float> want = UnpackedRows(weight), got = UnpackedRows(held);
      float largest = 0, distance = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        largest = std::max(largest, std::abs(want[i]));
        distance = std::max(distance, std::abs(got[i] - want[i]));
      }
      return distance / largest;
    };
    const LayerWeights &was = plain.weights.layers[0], &is = exact.weights.layers[0], &held = few.weights.layers[0];
    if (absl::StartsWith(name, "lora")) {
      EXPECT_LT(far(held.attention.o, is.attention.o), 0.01);
      EXPECT_GT(far(held.attention.o, was.attention.o), 0.02);
      continue;
    }
    for (const auto matrix : {&FfnWeights::gate_up, &FfnWeights::down}) {
      EXPECT_LT(far(held.moe->experts[5].*matrix, is.moe->experts[5].*matrix), 0.01);
      EXPECT_GT(far(held.moe->experts[5].*matrix, was.moe->experts[5].*matrix), 0.02);
    }
  }
}

// A copy of an adapter's folder with a changed configuration.
class BadAdapterTest : public testing::Test {
 protected:
  std::string Refused(const std::string& from, const std::string& to) {
    const std::string source = absl::StrCat(kAdapters, "lora-olmoe-clip/");
    const std::string config = ReadFileBytes(source + "adapter_config.json");
    EXPECT_THAT(config, HasSubstr(from));
    dir_.Write("adapter_config.json", absl::StrReplaceAll(config, {{from, to}}));
    dir_.Write("adapter_model.safetensors", ReadFileBytes(source + "adapter_model.safetensors"));
    return std::string(LoraAdapter::Open(dir_.path()).status().message());
  }
  TempDir dir_;
};

TEST_F(BadAdapterTest, ConfigurationsThatAreNotUnderstood) {
  EXPECT_EQ(Refused("\"r\"", "\"r\""), "");
  EXPECT_THAT(Refused("\"LORA\"", "\"IA3\""), HasSubstr("peft_type: LORA is wanted"));
  EXPECT_THAT(Refused("\"lora_alpha\": 8", "\"lora_alpha\": \"x\""), HasSubstr("lora_alpha: a number is wanted"));
  EXPECT_THAT(Refused("\"use_dora\": false", "\"use_dora\": true"), HasSubstr("use_dora: true is not supported"));
  EXPECT_THAT(Refused("\"bias\": \"none\"", "\"bias\": \"all\""), HasSubstr("bias: \"all\" is not supported"));
  EXPECT_THAT(Refused("\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]"),
              HasSubstr("modules_to_save: "));
  EXPECT_THAT(Refused("\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 2}"), HasSubstr("rank_pattern: "));
  EXPECT_THAT(Refused("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\""),
              HasSubstr("init_lora_weights: "));
  EXPECT_THAT(Refused("\"use_rslora\": false", "\"use_rslora\": \"false\""), HasSubstr("use_rslora: true or false"));
  EXPECT_THAT(Refused("\"r\": 4", "\"r\": 0"), HasSubstr("r: a whole number in [1, "));
  EXPECT_THAT(Refused("\"r\": 4", "\"r\": 8"), HasSubstr("], r in adapter_config.json is 8"));
  EXPECT_THAT(Refused("{", "[{"), HasSubstr("adapter_config.json"));
}

// Of experts' parameters: what is known are theirs in all layers, and a rank and an alpha of their own.
TEST_F(BadAdapterTest, ParametersOfExperts) {
  const std::string source = absl::StrCat(kAdapters, "experts-olmoe-clip/");
  const std::string config = ReadFileBytes(source + "adapter_config.json");
  dir_.Write("adapter_model.safetensors", ReadFileBytes(source + "adapter_model.safetensors"));
  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_THAT(config, HasSubstr(from));
    dir_.Write("adapter_config.json", absl::StrReplaceAll(config, {{from, to}}));
    const auto adapter = LoraAdapter::Open(dir_.path());
    return adapter.ok()
               ? absl::StrCat("scale ", (*adapter)->matrices().at("model.layers.1.mlp.experts.7.gate_up_proj").scale)
               : std::string(adapter.status().message());
  };
  EXPECT_EQ(with("\"gate_up_proj\"", "\"mlp.experts.gate_up_proj\""), "scale 2");
  EXPECT_EQ(with("\"alpha_pattern\": {}", R"("alpha_pattern": {".*\\.gate_up_proj": 2})"), "scale 0.5");
  EXPECT_THAT(with("\"rank_pattern\": {}", R"("rank_pattern": {".*\\.gate_up_proj": 5})"),
              HasSubstr("is [32, 48], r in adapter_config.json is 5 for each expert"));
  EXPECT_THAT(with("\"rank_pattern\": {}", R"("rank_pattern": {"gate_up_proj": 0})"),
              HasSubstr("rank_pattern: a whole number in [1, "));
  EXPECT_THAT(with("\"alpha_pattern\": {}", R"("alpha_pattern": {"layers.1.mlp.experts.gate_up_proj": 2})"),
              HasSubstr("alpha_pattern: "));
  EXPECT_THAT(with("\"gate_up_proj\"", "\"model.layers.0.mlp.experts.gate_up_proj\""),
              HasSubstr("target_parameters: "));
  // (PEFT writes them in any order.)
  EXPECT_THAT(with("\"down_proj\"", "\"gate_up_proj\""),
              HasSubstr("target_parameters in adapter_config.json names one"));
}

TEST_F(BadAdapterTest, ScalesFollowTheConfiguration) {
  const auto scale = [&] {
    const auto adapter = LoraAdapter::Open(dir_.path());
    EXPECT_TRUE(adapter.ok()) << adapter.status();
    return (*adapter)->matrices().begin()->second.scale;
  };
  EXPECT_EQ(Refused("\"lora_alpha\": 8", "\"lora_alpha\": 6"), "");
  EXPECT_EQ(scale(), 1.5);
  const std::string hash = (*LoraAdapter::Open(dir_.path()))->Hash();
  EXPECT_EQ(Refused("\"use_rslora\": false", "\"use_rslora\": true"), "");
  EXPECT_EQ(scale(), 4);  // 8 / sqrt(4)
  EXPECT_NE((*LoraAdapter::Open(dir_.path()))->Hash(), hash);
  EXPECT_EQ(hash.size(), 16u);
}

TEST_F(BadAdapterTest, FilesThatAreMissingOrCut) {
  EXPECT_EQ(LoraAdapter::Open(dir_.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Refused("\"r\"", "\"r\""), "");
  const std::string weights = ReadFileBytes(dir_.File("adapter_model.safetensors"));
  dir_.Write("adapter_model.safetensors", weights.substr(0, weights.size() - 1));
  EXPECT_FALSE(LoraAdapter::Open(dir_.path()).ok());
  dir_.Write("adapter_model.safetensors",
             absl::StrReplaceAll(weights, {{"0.self_attn.q_proj.lora_B", "0.self_attn.q_proj.lora_C"}}));
  EXPECT_THAT(std::string(LoraAdapter::Open(dir_.path()).status().message()), HasSubstr("lora_C"));
}

TEST(AdapterOfAnotherModelTest, IsRefusedWithBothShapes) {
  const auto adapter = LoraAdapter::Open(absl::StrCat(kAdapters, "lora-olmoe-clip"));
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const auto refused = [&](const std::string& model) {
    const ModelConfig config = *ReadModelConfig(kModels + model);
    const auto checkpoint = checkpoint::Checkpoint::Open(kModels + model);
    SY_CHECK_OK(checkpoint.status());
    std::vector<int32_t> all;
    for (int32_t e = 0; e < config.num_experts; ++e) all.push_back(e);
    auto weights = AllocateWeights(config, DType::kF32, all);
    SY_CHECK_OK(weights.status());
    auto params = BuildParams(config, *FindFamily(config.model_type), *checkpoint, &*weights);
    SY_CHECK_OK(params.status());
    return std::string(MergeAdapter(config, **adapter, *checkpoint, &*params).message());
  };
  EXPECT_EQ(refused("olmoe-clip"), "");
  EXPECT_THAT(refused("mixtral-window"),
              testing::AllOf(HasSubstr("_proj.weight is ["), HasSubstr("the adapter is for [")));
}

}  // namespace
}  // namespace switchyard::model
