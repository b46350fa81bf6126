// Weights on their way from file to packed form: every dtype and spelling, experts by rank, and what is refused.
#include "workers/model/weights/loader.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/small_checkpoint.h"
#include "workers/model/weights/serving_type.h"

namespace switchyard::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LoaderTest, EveryDtypeAndSpellingGivesTheSameWeights) {
  for (const char* from : {"F32", "BF16", "F16", "F64"}) {
    for (const DType to : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64}) {
      for (const bool fused : {false, true}) {
        SCOPED_TRACE(absl::StrCat(from, " to ", DTypeName(to), fused ? " fused" : ""));
        const auto weights = Load(SmallTensors(from, fused), AllExperts(to), SmallConfig());
        ASSERT_TRUE(weights.ok()) << weights.status();
        const LayerWeights& layer = weights->layers[0];
        ASSERT_TRUE(layer.moe.has_value());
        for (int e = 0; e < kExperts; ++e) {
          EXPECT_EQ(Rows(layer.moe->experts[e].gate_up), Expected(13 + e * 2 * kWidth * kHidden, 2 * kWidth * kHidden));
          EXPECT_EQ(Rows(layer.moe->experts[e].down), Expected(14 + e * kWidth * kHidden, kWidth * kHidden));
        }
        std::vector<float> qkv = Expected(6, 8 * kHidden);
        for (const int part : {7, 8}) {
          for (const float value : Expected(part, 4 * kHidden)) qkv.push_back(value);
        }
        EXPECT_EQ(Rows(layer.attention.qkv), qkv);
        EXPECT_EQ(Rows(weights->lm_head), Expected(2, kVocab * kHidden));
        EXPECT_EQ(weights->embedding.shape(), (Shape{kVocab, kHidden}));
      }
    }
  }
}

TEST(LoaderTest, ARankHoldsItsExpertsAndReadsNoOthers) {
  for (const bool fused : {false, true}) {
    int64_t all_bytes = 0, one_bytes = 0;
    LoadOptions all = AllExperts();
    all.progress = [&](int64_t, int64_t total) {
      all_bytes = total;
      return true;
    };
    LoadOptions one = AllExperts();
    one.residents = {2};
    one.progress = [&](int64_t done, int64_t total) {
      EXPECT_LE(done, total);
      one_bytes = total;
      return true;
    };
    ASSERT_TRUE(Load(SmallTensors("F32", fused), std::move(all), SmallConfig()).ok());
    const auto weights = Load(SmallTensors("F32", fused), std::move(one), SmallConfig());
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(all_bytes - one_bytes, 2 * 3 * kWidth * kHidden * 4);
    ASSERT_EQ(weights->layers[0].moe->experts.size(), 1u);
    EXPECT_EQ(Rows(weights->layers[0].moe->experts[0].down), Expected(14 + 2 * kWidth * kHidden, kWidth * kHidden));
  }
}

TEST(LoaderTest, ARankMayHoldNoExpert) {
  LoadOptions none = AllExperts();
  none.residents = {};
  const auto weights = Load(SmallTensors("F32", false), std::move(none), SmallConfig());
  ASSERT_TRUE(weights.ok());
  EXPECT_TRUE(weights->layers[0].moe->experts.empty());
}

TEST(LoaderTest, TiedEmbeddingsAreHeldOnce) {
  ModelConfig config = SmallConfig();
  config.tie_embeddings = true;
  Tensors tensors = SmallTensors("F32", false);
  tensors.erase("lm_head.weight");
  const auto weights = Load(tensors, AllExperts(), config);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(Rows(weights->lm_head), Expected(1, kVocab * kHidden));
  EXPECT_EQ(weights->embedding.bytes(), 0);
}

TEST(LoaderTest, ErrorsNameFileTensorExpectedAndFound) {
  const std::string down = "model.layers.0.mlp.experts.1.down_proj.weight";
  const std::string norm = "model.layers.0.input_layernorm.weight";
  Tensors missing = SmallTensors("F32", false), shape = missing, dtype = missing, many = missing;
  missing.erase(down);
  EXPECT_THAT(std::string(Load(missing, AllExperts(), SmallConfig()).status().message()),
              HasSubstr(absl::StrCat("tensor \"", down, "\": expected [8, 6], it is missing")));
  shape[down] = checkpoint::FloatTensor("F32", {6, 8}, std::vector<float>(48));
  EXPECT_THAT(std::string(Load(shape, AllExperts(), SmallConfig()).status().message()),
              HasSubstr(absl::StrCat("model.safetensors: tensor \"", down, "\": expected [8, 6], found [6, 8]")));
  dtype[norm] = {"I64", {kHidden}, std::string(kHidden * 8, '\0')};
  EXPECT_THAT(std::string(Load(dtype, AllExperts(), SmallConfig()).status().message()),
              HasSubstr(absl::StrCat("tensor \"", norm, "\": expected BF16, F16, F32 or F64, found I64")));
  for (auto it = many.begin(); it != many.end();)
    it = it->first.find("experts") != std::string::npos ? many.erase(it) : ++it;
  EXPECT_THAT(std::string(Load(many, AllExperts(), SmallConfig()).status().message()), HasSubstr("and 1 more"));
  ModelConfig config = SmallConfig();
  config.vocab_size = kVocab + 1;
  EXPECT_THAT(std::string(Load(SmallTensors("F32", false), AllExperts(), config).status().message()),
              HasSubstr("tensor \"model.embed_tokens.weight\": expected [11, 8], found [10, 8]"));
}

// What the model does not use is no error: copies of tied heads, buffers of old versions.  The log names it.
TEST(LoaderTest, ExtraTensorsAreNamedAndLeftOut) {
  Tensors tensors = SmallTensors("F32", false);
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = Numbered("F32", {2}, 1);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(Load(tensors, AllExperts(), SmallConfig()).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("1 tensors of the checkpoint are not part of OlmoeForCausalLM: "
                        "model.layers.0.self_attn.rotary_emb.inv_freq"));
}

TEST(LoaderTest, ValuesThatAreNoNumbersAreRefused) {
  const std::string name = "model.layers.0.mlp.gate.weight";
  for (const char* dtype : {"F32", "BF16", "F16"}) {
    for (const float bad :
         {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      Tensors tensors = SmallTensors(dtype, false);
      std::vector<float> values(kExperts * kHidden, 1.0f);
      values[2 * kHidden + 5] = bad;
      tensors[name] = checkpoint::FloatTensor(dtype, {kExperts, kHidden}, values);
      EXPECT_THAT(std::string(Load(tensors, AllExperts(), SmallConfig()).status().message()),
                  AllOf(HasSubstr(absl::StrCat("tensor \"", name, "\": expected finite values")),
                        HasSubstr("at row 2, column 5")));
    }
  }
  Tensors tensors = SmallTensors("F32", false);
  tensors["model.norm.weight"] = checkpoint::FloatTensor("F32", {kHidden}, std::vector<float>(kHidden, 1e5f));
  EXPECT_TRUE(Load(tensors, AllExperts(DType::kBf16), SmallConfig()).ok());
  EXPECT_THAT(std::string(Load(tensors, AllExperts(DType::kF16), SmallConfig()).status().message()),
              HasSubstr("that fp16 can hold, found 100000 at row 0, column 0"));
}

TEST(LoaderTest, StopsWhenAsked) {
  LoadOptions options = AllExperts();
  options.progress = [](int64_t, int64_t) { return false; };
  EXPECT_EQ(Load(SmallTensors("F32", false), std::move(options), SmallConfig()).status().code(),
            absl::StatusCode::kCancelled);
}

TEST(LoaderTest, FileThatShrinksWhileItIsLoaded) {
  TempDir dir;
  dir.Write("model.safetensors", checkpoint::SafetensorsBytes(SmallTensors("F32", false)));
  const auto checkpoint = checkpoint::Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  std::filesystem::resize_file(dir.File("model.safetensors"), 3000);
  EXPECT_EQ(LoadWeights(*checkpoint, SmallConfig(), AllExperts()).status().code(), absl::StatusCode::kDataLoss);
}

TEST(LoaderTest, ServingDType) {
  TempDir dir;
  dir.Write("model.safetensors", checkpoint::SafetensorsBytes(SmallTensors("F16", false)));
  const auto checkpoint = checkpoint::Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  ModelConfig config = SmallConfig();
  EXPECT_EQ(*ServingDType("auto", config, *checkpoint), DType::kF16);
  config.file_dtype = DType::kBf16;
  EXPECT_EQ(*ServingDType("auto", config, *checkpoint), DType::kBf16);
  EXPECT_EQ(*ServingDType("fp64", config, *checkpoint), DType::kF64);
  EXPECT_THAT(std::string(ServingDType("int8", config, *checkpoint).status().message()),
              HasSubstr("expected auto, fp32, bf16, fp16 or fp64"));
}

}  // namespace
}  // namespace switchyard::model
