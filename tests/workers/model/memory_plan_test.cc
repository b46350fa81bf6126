// The memory of a model: the plan's formula and its errors, and that loading holds what is planned and little more.
#include "workers/model/config/memory_plan.h"

#include <fstream>
#include <utility>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/qwen3_json.h"
#include "tests/workers/model/small_checkpoint.h"
#include "workers/model/config/config_reader.h"
#include "workers/model/weights/loader.h"

namespace switchyard::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MemoryPlanTest, SaysWhatItNeeds) {
  auto c = ParseModelConfig(Qwen3().dump(), "");
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(KvBytesPerToken(*c, DType::kBf16), 2 * 2 * 32 * 4 * 2);
  EXPECT_TRUE(
      CheckMemory(*c, {.dtype = DType::kBf16, .experts_per_layer = 8, .kv_cache_bytes = 1 << 20}, 8 << 20).ok());
  // An expert of a store's takes what a resident one takes.
  const absl::int128 per_expert =
      (WeightBytes(*c, DType::kBf16, 8) - WeightBytes(*c, DType::kBf16, 0)) / (8 * c->num_moe_layers());
  const auto with_slots = static_cast<int64_t>(WeightBytes(*c, DType::kBf16, 0) + 5 * per_expert);
  const MemoryNeed store = {.dtype = DType::kBf16, .experts_per_layer = 8, .expert_slots = 5};
  EXPECT_TRUE(CheckMemory(*c, store, with_slots).ok());
  EXPECT_THAT(std::string(CheckMemory(*c, store, with_slots - 1).message()), HasSubstr("5 experts at a time"));
  MemoryNeed adapters = store;
  adapters.adapter_bytes = 100;
  EXPECT_TRUE(CheckMemory(*c, adapters, with_slots + 100).ok());
  EXPECT_THAT(std::string(CheckMemory(*c, adapters, with_slots + 99).message()),
              HasSubstr("5 experts at a time, adapters 100 bytes, KV cache"));
  c->hidden = 1 << 20;
  c->layers.resize(4096);
  c->num_experts = 65536;
  c->expert_intermediate = 1 << 20;
  c->vocab_size = 1 << 24;
  const absl::Status status = CheckMemory(*c, {.dtype = DType::kF64, .experts_per_layer = 65536}, int64_t{1} << 34);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("config needs "), HasSubstr("worker has 17179869184 bytes available")));
  EXPECT_GT(WeightBytes(*c, DType::kF64, 65536), absl::int128(1) << 64);
}

// It grows with the context alone, which a config may make as long as it likes.
TEST(MemoryPlanTest, CountsTheRopeTable) {
  nlohmann::json json = Qwen3();
  json["max_position_embeddings"] = 1 << 30;
  const auto c = ParseModelConfig(json.dump(), "");
  ASSERT_TRUE(c.ok()) << c.status();
  MemoryNeed need = {.dtype = DType::kBf16, .experts_per_layer = 8};
  EXPECT_TRUE(CheckMemory(*c, need, 8 << 20).ok());
  need.positions = c->context;
  EXPECT_THAT(std::string(CheckMemory(*c, need, int64_t{1} << 36).message()),
              HasSubstr("8 experts a layer, RoPE table of 1073741824 positions 137438953472 bytes, KV cache"));
  EXPECT_EQ(RopeTableBytes(*c, DType::kF64, 100), 2 * 100 * 16 * 8);
  for (const std::string& name : FixtureNames()) {
    const auto config = ReadModelConfig(LoadFixture(name).dir);
    ASSERT_TRUE(config.ok()) << config.status();
    if (config->learned_positions) {
      EXPECT_EQ(RopeTableBytes(*config, DType::kF32, 640), 0) << name;
      continue;
    }
    const auto table = ops::RopeTable::Build(config->rope, 640, DType::kF32);  // one has longrope
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_EQ(RopeTableBytes(*config, DType::kF32, 640), 2 * table->num_rows() * table->rotary_dim() / 2 * 4) << name;
  }
}

// Sizes are exact to a byte, and none is negative where weights alone exceed the limit.
TEST(MemoryPlanTest, SaysWhatIsAvailable) {
  auto c = ParseModelConfig(Qwen3().dump(), "");
  ASSERT_TRUE(c.ok());
  const MemoryNeed need = {.dtype = DType::kBf16, .experts_per_layer = 8, .kv_cache_bytes = 12345};
  const auto bytes = static_cast<int64_t>(WeightBytes(*c, DType::kBf16, 8)) + 12345;
  EXPECT_TRUE(CheckMemory(*c, need, bytes).ok());
  EXPECT_EQ(
      CheckMemory(*c, need, bytes - 1).message(),
      absl::StrCat("config needs ", bytes, " bytes (weights in bf16 with 8 experts a layer, KV cache 12345 bytes), ",
                   "worker has ", bytes - 1, " bytes available"));
  EXPECT_THAT(std::string(CheckMemory(*c, need, -7).message()), HasSubstr("worker has 0 bytes available"));

  KvCapacity room = {.available = 1600,
                     .limit = "--gpu_memory_fraction=0.1 of 50000 bytes, of which 3401 are in use",
                     .token_bytes = 100,
                     .block_size = 16};
  EXPECT_TRUE(CheckKvCapacity(room).ok());
  room.available = 1599;
  EXPECT_EQ(CheckKvCapacity(room),
            absl::ResourceExhaustedError(
                "KV cache: needed at least 1600 bytes (a block of 16 tokens), available 1599 bytes of "
                "--gpu_memory_fraction=0.1 of 50000 bytes, of which 3401 are in use"));
  room.available = -300;
  EXPECT_EQ(
      CheckKvCapacity(room),
      absl::ResourceExhaustedError("KV cache: needed at least 1600 bytes (a block of 16 tokens), available 0 bytes of "
                                   "--gpu_memory_fraction=0.1 of 50000 bytes, of which 3401 are in use"));
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

// Bytes of the weights of two experts a layer, as they are held and as they are planned.
std::pair<int64_t, int64_t> HeldAndPlanned(const ModelConfig& config, const ops::WeightFormats& formats) {
  const ops::WeightType type = {DType::kBf16, formats};
  const auto weights = AllocateWeights(config, type, {0, 1});
  SY_CHECK_OK(weights.status());
  return {weights->bytes(), static_cast<int64_t>(WeightBytes(config, type, 2))};
}

TEST(LoaderTest, MemoryPlanKnowsTheFormatOfEachKind) {
  using ops::WeightFormat;
  ModelConfig config = SmallConfig();
  config.hidden = 512;
  config.expert_intermediate = 1024;
  const auto [held, planned] = HeldAndPlanned(config, WeightFormat::kQ8_0);
  const auto of_experts = config.num_moe_layers() * 2 * config.hidden * config.expert_intermediate;
  for (const auto& [formats, saved] : {std::pair(ops::WeightFormats(WeightFormat::kQ8_0, WeightFormat::kQ4_0,
                                                                    WeightFormat::kQ8_0, WeightFormat::kQ8_0),
                                                 of_experts),
                                       std::pair(ops::WeightFormats(WeightFormat::kQ8_0, WeightFormat::kQ8_0,
                                                                    WeightFormat::kInt4, WeightFormat::kQ8_0),
                                                 of_experts / 2)}) {
    const auto [less_held, less_planned] = HeldAndPlanned(config, formats);
    EXPECT_EQ(held - less_held, saved) << ops::ToString(formats);  // half of a byte for each number
    EXPECT_EQ(planned - less_planned, saved) << ops::ToString(formats);
  }
  EXPECT_EQ(ops::ToString(ops::WeightFormats(WeightFormat::kPlain, WeightFormat::kQ4_1, WeightFormat::kQ4_1,
                                             WeightFormat::kPlain)),
            "plain, experts q4_1");
}

// A slot has room for any layer's expert.
TEST(LoaderTest, MemoryPlanKnowsTheFormatsOfEachLayer) {
  using ops::WeightFormat;
  ModelConfig config = SmallConfig();
  config.hidden = 512;
  config.expert_intermediate = config.dense_intermediate = 1024;
  config.layers.resize(4);
  for (size_t i = 0; i < 4; ++i) config.layers[i].moe = i > 0;
  const auto [held, planned] = HeldAndPlanned(config, WeightFormat::kQ8_0);
  ops::WeightFormats by_layer(WeightFormat::kQ8_0);
  by_layer.layers.assign(config.layers.size(), by_layer.all_layers);
  by_layer.layers[1].down = WeightFormat::kQ4_0;
  by_layer.layers[0].dense_down = WeightFormat::kQ4_0;
  by_layer.layers[0].gate_up = WeightFormat::kPlain;     // which it does not have
  by_layer.layers[1].dense_down = WeightFormat::kPlain;  // likewise
  const auto [less_held, less_planned] = HeldAndPlanned(config, by_layer);
  const int64_t saved = config.hidden * config.expert_intermediate / 2 * 3;  // two experts' and the first layer's
  EXPECT_EQ(held - less_held, saved);
  EXPECT_EQ(planned - less_planned, saved);
  by_layer.layers[0].gate_up = by_layer.layers[1].dense_down = WeightFormat::kQ4_0;
  EXPECT_EQ(ops::ToString(by_layer), "q8_0 and q4_0");
  by_layer.layers[2].qkv = WeightFormat::kQ6_K;
  EXPECT_EQ(ops::ToString(by_layer), "q8_0 and q4_0 and q6_k, experts q8_0 and q4_0");
  const moe::ExpertForms forms = ExpertFormsOf(config, {DType::kBf16, by_layer}, DeviceKind::kCpu);
  EXPECT_EQ(forms.of(0).down.format, WeightFormat::kQ4_0);
  EXPECT_EQ(forms.of(1).down.format, WeightFormat::kQ8_0);
  EXPECT_EQ(forms.bytes(), forms.of(1).bytes);
  const auto with_slots = [&](const ops::WeightFormats& formats, int64_t slots) {
    return MemoryBytes(config, {.expert_slots = slots, .format = formats});
  };
  EXPECT_EQ(with_slots(by_layer, 3) - with_slots(by_layer, 0),
            with_slots(WeightFormat::kQ8_0, 3) - with_slots(WeightFormat::kQ8_0, 0));
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

}  // namespace
}  // namespace switchyard::model
