// Weights on their way from file to packed form: every dtype and spelling, experts by rank, and what is refused.
#include "workers/model/weights/loader.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/checkpoint/safetensors_bytes.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/weights/dummy_weights.h"
#include "workers/moe/experts/packed_expert.h"

namespace switchyard::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kHidden = 8, kWidth = 6, kVocab = 10, kExperts = 3, kHeadDim = 4;

ModelConfig SmallConfig() {
  ModelConfig c;
  c.model_type = "olmoe";
  c.architecture = "OlmoeForCausalLM";
  c.vocab_size = kVocab;
  c.hidden = kHidden;
  c.context = 32;
  c.layers.resize(1);
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = kHeadDim;
  c.qk_norm = QkNorm::kWholeRow;
  c.rope.rotary_dim = kHeadDim;
  c.num_experts = kExperts;
  c.top_k = 2;
  c.expert_intermediate = kWidth;
  return c;
}

using Tensors = std::map<std::string, checkpoint::WrittenTensor>;

// Values that differ for every element and that every dtype holds exactly.
checkpoint::WrittenTensor Numbered(const std::string& dtype, std::vector<int64_t> shape, int first) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>((first + i) % 251) / 4);
  return checkpoint::FloatTensor(dtype, std::move(shape), values);
}

Tensors SmallTensors(const std::string& dtype, bool fused) {
  const std::string layer = "model.layers.0.";
  Tensors t;
  t["model.embed_tokens.weight"] = Numbered(dtype, {kVocab, kHidden}, 1);
  t["lm_head.weight"] = Numbered(dtype, {kVocab, kHidden}, 2);
  t["model.norm.weight"] = Numbered(dtype, {kHidden}, 3);
  t[layer + "input_layernorm.weight"] = Numbered(dtype, {kHidden}, 4);
  t[layer + "post_attention_layernorm.weight"] = Numbered(dtype, {kHidden}, 5);
  t[layer + "self_attn.q_proj.weight"] = Numbered(dtype, {8, kHidden}, 6);
  t[layer + "self_attn.k_proj.weight"] = Numbered(dtype, {4, kHidden}, 7);
  t[layer + "self_attn.v_proj.weight"] = Numbered(dtype, {4, kHidden}, 8);
  t[layer + "self_attn.o_proj.weight"] = Numbered(dtype, {kHidden, 8}, 9);
  t[layer + "self_attn.q_norm.weight"] = Numbered(dtype, {8}, 10);
  t[layer + "self_attn.k_norm.weight"] = Numbered(dtype, {4}, 11);
  t[layer + "mlp.gate.weight"] = Numbered(dtype, {kExperts, kHidden}, 12);
  if (fused) {
    t[layer + "mlp.experts.gate_up_proj"] = Numbered(dtype, {kExperts, 2 * kWidth, kHidden}, 13);
    t[layer + "mlp.experts.down_proj"] = Numbered(dtype, {kExperts, kHidden, kWidth}, 14);
    return t;
  }
  for (int e = 0; e < kExperts; ++e) {
    const std::string expert = absl::StrCat(layer, "mlp.experts.", e, ".");
    const int at = e * 2 * kWidth * kHidden;
    t[expert + "gate_proj.weight"] = Numbered(dtype, {kWidth, kHidden}, 13 + at);
    t[expert + "up_proj.weight"] = Numbered(dtype, {kWidth, kHidden}, 13 + at + kWidth * kHidden);
    t[expert + "down_proj.weight"] = Numbered(dtype, {kHidden, kWidth}, 14 + e * kWidth * kHidden);
  }
  return t;
}

absl::StatusOr<ModelWeights> Load(const Tensors& tensors, LoadOptions options, const ModelConfig& config) {
  TempDir dir;
  dir.Write("model.safetensors", checkpoint::SafetensorsBytes(tensors));
  const auto checkpoint = checkpoint::Checkpoint::Open(dir.path());
  if (!checkpoint.ok()) return checkpoint.status();
  return LoadWeights(*checkpoint, config, std::move(options));
}

LoadOptions AllExperts(DType dtype = DType::kF32) {
  LoadOptions options;
  options.dtype = dtype;
  options.residents = {0, 1, 2};
  options.num_threads = 2;
  return options;
}

std::vector<float> Rows(const ops::Weight& weight) {
  Tensor rows(weight.dtype(), {weight.n(), weight.k()});
  EXPECT_TRUE(weight.UnpackRows(0, rows).ok());
  std::vector<float> values;
  VisitDType(weight.dtype(), [&]<class Elem>() {
    for (int64_t i = 0; i < rows.view().NumElements(); ++i) {
      values.push_back(static_cast<float>(static_cast<Acc<Elem>>(rows.data<Elem>()[i])));
    }
  });
  return values;
}

std::vector<float> Expected(int first, int64_t n) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>((first + i) % 251) / 4);
  return values;
}

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

// The plan's formula and what is held agree, but for the panels' padding.
TEST(LoaderTest, MemoryPlanAgreesWithWhatIsHeld) {
  for (const std::string& name : FixtureNames()) {
    const auto config = ReadModelConfig(LoadFixture(name).dir);
    ASSERT_TRUE(config.ok());
    const ModelWeights weights = *AllocateWeights(*config, DType::kF32, {0, 1});
    const auto planned = static_cast<int64_t>(WeightBytes(*config, DType::kF32, 2));
    EXPECT_GE(weights.bytes(), planned) << name;
    EXPECT_LE(weights.bytes(), planned * 2) << name;
  }
}

// Their biases have no place in an expert's packed form.
TEST(LoaderTest, ExpertsWithBiasesAreNotForStores) {
  const auto gpt2 = ReadModelConfig(LoadFixture("gpt2-top1").dir),
             mixtral = ReadModelConfig(LoadFixture("mixtral-gqa").dir);
  EXPECT_TRUE(CheckStorable(*mixtral).ok());
  const absl::Status status = CheckStorable(*gpt2);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("experts of gpt2_moe are gelu ones with biases"));
}

int64_t StatusKb(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key, 0) == 0) return std::stoll(line.substr(std::string(key).size() + 1));
  }
  return 0;
}

// A model of 160 MB, loaded as one of two ranks: the peak stays below what is held and the staging buffers.
TEST(LoaderTest, PeakMemoryIsBounded) {
#ifdef ABSL_HAVE_THREAD_SANITIZER
  GTEST_SKIP() << "ThreadSanitizer's record of every byte is in this process, too";
#endif
  ModelConfig config = SmallConfig();
  config.hidden = 512;
  config.expert_intermediate = 1024;
  config.num_experts = 48;
  config.vocab_size = 1000;
  Tensors tensors = SmallTensors("BF16", true);
  const std::string layer = "model.layers.0.";
  const auto zeros = [](std::vector<int64_t> shape) {
    int64_t bytes = 2;
    for (const int64_t d : shape) bytes *= d;
    return checkpoint::WrittenTensor{"BF16", std::move(shape), std::string(static_cast<size_t>(bytes), '\0')};
  };
  TempDir dir;
  {
    tensors["model.embed_tokens.weight"] = tensors["lm_head.weight"] = zeros({1000, 512});
    for (const char* name : {"input_layernorm", "post_attention_layernorm"})
      tensors[layer + name + ".weight"] = zeros({512});
    tensors["model.norm.weight"] = zeros({512});
    for (const auto& [name, n] : {std::make_pair("q", 8), std::make_pair("k", 4), std::make_pair("v", 4)}) {
      tensors[absl::StrCat(layer, "self_attn.", name, "_proj.weight")] = zeros({n, 512});
    }
    tensors[layer + "self_attn.o_proj.weight"] = zeros({512, 8});
    tensors[layer + "mlp.gate.weight"] = zeros({48, 512});
    tensors[layer + "mlp.experts.gate_up_proj"] = zeros({48, 2048, 512});
    tensors[layer + "mlp.experts.down_proj"] = zeros({48, 512, 1024});
    dir.Write("model.safetensors", checkpoint::SafetensorsBytes(tensors));
    tensors.clear();
  }
  const auto checkpoint = checkpoint::Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM starts anew
  const int64_t before_kb = StatusKb("VmRSS");
  LoadOptions options = AllExperts(DType::kBf16);
  options.residents.clear();
  for (int e = 0; e < 24; ++e) options.residents.push_back(e);
  const auto weights = LoadWeights(*checkpoint, config, std::move(options));
  ASSERT_TRUE(weights.ok()) << weights.status();
  if (StatusKb("VmHWM") < before_kb + 1024) GTEST_SKIP() << "this kernel does not reset VmHWM";
  const int64_t grown = (StatusKb("VmHWM") - before_kb) << 10;
  EXPECT_LT(grown, weights->bytes() * 115 / 100 + kStagingBytes + (8 << 20));
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
    std::memset(memory_.data<uint8_t>(), 0, memory_.bytes());
    const absl::Status status = LoadExperts(*checkpoint, SmallConfig(), AllExperts(GetParam()),
                                            [this](int layer, int32_t expert) { return PlaceOf(layer, expert); });
    ASSERT_TRUE(status.ok()) << status;
    ExpectTheBytesOf(*whole);
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
  const absl::Status status = MakeDummyExperts(SmallConfig(), AllExperts(GetParam()),
                                               [this](int layer, int32_t expert) { return PlaceOf(layer, expert); });
  ASSERT_TRUE(status.ok()) << status;
  ExpectTheBytesOf(*whole);
}

}  // namespace
}  // namespace switchyard::model
