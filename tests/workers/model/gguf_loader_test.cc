// GGUF files through the loader: heads whose rows are stored in another order, and blocks of several types, which
// weights hold in the forms that StoredFormats chooses.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/workers/checkpoint/gguf_bytes.h"
#include "tests/workers/model/expert_adapters.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/gguf/gguf_names.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/adapters.h"
#include "workers/model/weights/loader.h"
#include "workers/model/weights/serving_type.h"

namespace switchyard::model {
namespace {

using checkpoint::GgufF32Key;
using checkpoint::GgufRow;
using checkpoint::GgufTextKey;
using checkpoint::GgufU32Key;

using ops::WeightFormat;

// More rows than one piece has, in heads that do not divide a panel of 32 columns, nor are a multiple of it.
constexpr int64_t kHeads = 410, kHeadDim = 80, kHidden = 32, kRows = kHeads * kHeadDim;

// Elements of stored row i are i.
std::string FileBytes() {
  checkpoint::GgufParts parts = {.keys = {GgufTextKey("general.architecture", "llama")}};
  const std::pair<const char*, int64_t> ints[] = {{"block_count", 1},
                                                  {"context_length", 64},
                                                  {"embedding_length", kHidden},
                                                  {"feed_forward_length", 32},
                                                  {"expert_count", 2},
                                                  {"expert_used_count", 1},
                                                  {"attention.head_count", kHeads},
                                                  {"vocab_size", 8},
                                                  {"attention.head_count_kv", 1},
                                                  {"attention.key_length", kHeadDim},
                                                  {"attention.value_length", kHeadDim},
                                                  {"rope.dimension_count", kHeadDim}};
  for (const auto& [key, value] : ints) {
    parts.keys.push_back(GgufU32Key(absl::StrCat("llama.", key), static_cast<uint32_t>(value)));
  }
  parts.keys.push_back(GgufF32Key("llama.attention.layer_norm_rms_epsilon", 1e-5F));
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    parts.rows.push_back(GgufRow(name, shape, /*type=*/0, parts.data.size()));
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<float> values(static_cast<size_t>(shape.back()), static_cast<float>(row));
      parts.data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
  };
  add("token_embd.weight", {8, kHidden});
  add("output_norm.weight", {kHidden});
  add("output.weight", {8, kHidden});
  add("blk.0.attn_norm.weight", {kHidden});
  add("blk.0.ffn_norm.weight", {kHidden});
  add("blk.0.attn_q.weight", {kRows, kHidden});
  add("blk.0.attn_k.weight", {kHeadDim, kHidden});
  add("blk.0.attn_v.weight", {kHeadDim, kHidden});
  add("blk.0.attn_output.weight", {kHidden, kRows});
  add("blk.0.ffn_gate_inp.weight", {2, kHidden});
  for (const char* part : {"gate", "up", "down"}) add(absl::StrCat("blk.0.ffn_", part, "_exps.weight"), {2, 32, 32});
  return GgufBytes(parts);
}

TEST(GgufLoaderTest, HeadsOfAnySizeAreInOrder) {
  const TempDir dir;
  const std::string path = dir.Write("heads.gguf", FileBytes());
  const auto config = ReadModelConfig(path);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto checkpoint = checkpoint::Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  LoadOptions options;
  options.dtype = DType::kF32;
  options.residents = {0, 1};
  options.num_threads = 2;
  const auto weights = LoadWeights(*checkpoint, *config, std::move(options));
  ASSERT_TRUE(weights.ok()) << weights.status();
  const ops::Weight& qkv = weights->layers[0].attention.qkv;
  const Tensor rows(DType::kF32, {qkv.n(), qkv.k()});
  ASSERT_TRUE(qkv.UnpackRows(0, rows).ok());
  for (int64_t row = 0; row < qkv.n(); ++row) {
    int64_t stored = row < kRows + kHeadDim ? checkpoint::InterleavedRow(row, kHeadDim) : row;
    if (row >= kRows) stored -= row < kRows + kHeadDim ? kRows : kRows + kHeadDim;
    ASSERT_EQ(rows.view().row<float>(row)[row % kHidden], static_cast<float>(stored)) << row;
  }
}

// ---- blocks

struct BlockType {
  uint32_t id;
  int64_t elements, bytes;
  std::vector<int64_t> halves;  // where a block has factors in fp16
};
const BlockType kF32 = {0, 1, 4, {}}, kQ4_0 = {2, 32, 18, {0}}, kQ8_0 = {8, 32, 34, {0}}, kQ3K = {11, 256, 110, {108}},
                kQ4K = {12, 256, 144, {0, 2}}, kQ5K = {13, 256, 176, {0, 2}}, kQ6K = {14, 256, 210, {208}};

// What a model's matrices are: two layers of Qwen3-MoE with 2 experts, all widths 256.
struct BlocksOf {
  BlockType q = kQ4K, v[2] = {kQ4K, kQ4K}, gate = kQ4K, up = kQ4K, down[2] = {kQ4K, kQ4K}, head = kQ6K;
};

std::string BlocksFile(const BlocksOf& of) {
  constexpr int64_t kWide = 256;
  checkpoint::GgufParts parts = {.keys = {GgufTextKey("general.architecture", "qwen3moe")}};
  const std::pair<const char*, int64_t> ints[] = {{"block_count", 2},
                                                  {"context_length", 64},
                                                  {"embedding_length", kWide},
                                                  {"feed_forward_length", kWide},
                                                  {"expert_feed_forward_length", kWide},
                                                  {"expert_count", 2},
                                                  {"expert_used_count", 1},
                                                  {"vocab_size", 8},
                                                  {"attention.head_count", 4},
                                                  {"attention.head_count_kv", 4},
                                                  {"attention.key_length", 64},
                                                  {"attention.value_length", 64}};
  for (const auto& [key, value] : ints) {
    parts.keys.push_back(GgufU32Key(absl::StrCat("qwen3moe.", key), static_cast<uint32_t>(value)));
  }
  parts.keys.push_back(GgufF32Key("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6F));
  parts.keys.push_back(GgufF32Key("qwen3moe.rope.freq_base", 1e4F));
  uint32_t random = 1;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, const BlockType& type) {
    parts.data.resize((parts.data.size() + 31) / 32 * 32);
    parts.rows.push_back(GgufRow(name, shape, type.id, parts.data.size()));
    const int64_t numbers = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    for (int64_t block = 0; block < numbers / type.elements; ++block) {
      std::string bytes(static_cast<size_t>(type.bytes), '\0');
      if (type.elements > 1) {
        for (char& byte : bytes) byte = static_cast<char>((random = random * 1664525u + 1013904223u) >> 24);
        for (const int64_t at : type.halves) bytes.replace(static_cast<size_t>(at), 2, std::string("\x00\x14", 2));
      }
      parts.data += bytes;
    }
  };
  add("token_embd.weight", {8, kWide}, kF32);
  add("output_norm.weight", {kWide}, kF32);
  add("output.weight", {8, kWide}, of.head);
  for (int i = 0; i < 2; ++i) {
    const std::string at = absl::StrCat("blk.", i, ".");
    for (const char* norm : {"attn_norm", "ffn_norm"}) add(absl::StrCat(at, norm, ".weight"), {kWide}, kF32);
    for (const char* norm : {"attn_q_norm", "attn_k_norm"}) add(absl::StrCat(at, norm, ".weight"), {64}, kF32);
    for (const char* part : {"q", "k", "output"}) add(absl::StrCat(at, "attn_", part, ".weight"), {kWide, kWide}, of.q);
    add(at + "attn_v.weight", {kWide, kWide}, of.v[i]);
    add(at + "ffn_gate_inp.weight", {2, kWide}, kF32);
    add(at + "ffn_gate_exps.weight", {2, kWide, kWide}, of.gate);
    add(at + "ffn_up_exps.weight", {2, kWide, kWide}, of.up);
    add(at + "ffn_down_exps.weight", {2, kWide, kWide}, of.down[i]);
  }
  return GgufBytes(parts);
}

// The weights as they are held, with the adapter (null: none) merged into them; `formats` receives the forms.
ModelWeights LoadBlocks(const BlocksOf& of, bool decoded, ops::WeightFormats* formats,
                        const checkpoint::LoraAdapter* adapter = nullptr) {
  const TempDir dir;
  const std::string path = dir.Write("blocks.gguf", BlocksFile(of));
  const auto config = ReadModelConfig(path);
  SY_CHECK_OK(config.status());
  const auto checkpoint = checkpoint::Checkpoint::Open(path);
  SY_CHECK_OK(checkpoint.status());
  auto untouched = AllocateWeights(*config, DType::kF32, {0, 1});
  SY_CHECK_OK(untouched.status());
  auto params = BuildParams(*config, *FindFamily(config->model_type), *checkpoint, &*untouched);
  SY_CHECK_OK(params.status());
  if (adapter != nullptr) SY_CHECK_OK(MergeAdapter(*config, *adapter, *checkpoint, &*params));
  *formats = StoredFormats(*params, *untouched);
  LoadOptions options;
  options.adapter = adapter;
  options.dtype = DType::kF32;
  options.residents = {0, 1};
  if (!decoded) options.format = *formats;
  auto weights = LoadWeights(*checkpoint, *config, std::move(options));
  SY_CHECK_OK(weights.status());
  return *std::move(weights);
}

// The largest difference of a weight's values from those that are decoded, as a share of the largest value.
double WorstOf(const ops::Weight& held, const ops::Weight& decoded) {
  const Tensor ours(DType::kF32, {held.n(), held.k()}), theirs(DType::kF32, {held.n(), held.k()});
  SY_CHECK_OK(held.UnpackRows(0, ours));
  SY_CHECK_OK(decoded.UnpackRows(0, theirs));
  float worst = 0, largest = 0;
  for (int64_t i = 0; i < held.n() * held.k(); ++i) {
    worst = std::max(worst, std::fabs(ours.data<float>()[i] - theirs.data<float>()[i]));
    largest = std::max(largest, std::fabs(theirs.data<float>()[i]));
  }
  return static_cast<double>(worst / largest);
}

// A layer whose experts' gate and up are of Q4_K.
ops::LayerFormats LayerOf(WeightFormat qkv, WeightFormat o, WeightFormat down) {
  return {qkv, o, qkv, o, WeightFormat::kQ4_1, down};
}

// Each layer's matrices as they are stored, or, of several types of blocks (q, k and v), in a form that is near.
TEST(GgufLoaderTest, BlocksAreHeldAsEachLayerHasThem) {
  struct Case {
    BlocksOf of;
    std::vector<ops::LayerFormats> layers;
    WeightFormat head;
    double qkv[2], o;  // at most so far from the decoded values
  };
  constexpr double kHalf = 0x1p-10, kStepOf6 = 0.6 / 31, kStepOf8 = 0.6 / 127;
  BlocksOf mixed;  // as Q4_K_M
  mixed.v[0] = mixed.down[0] = kQ6K;
  BlocksOf eight = mixed, five = mixed, all6 = mixed, three = mixed;
  eight.v[1] = eight.down[1] = kQ8_0;
  five.q = kQ5K;
  all6.q = all6.v[0] = all6.v[1] = all6.down[0] = all6.down[1] = all6.gate = all6.up = kQ6K;
  three.q = three.v[0] = three.v[1] = kQ3K;
  three.head = kQ4_0;
  const WeightFormat q6 = WeightFormat::kQ6_K, q8 = WeightFormat::kQ8_0, q4 = WeightFormat::kQ4_1;
  const Case cases[] = {{{}, {LayerOf(q4, q4, q4)}, q6, {kHalf, kHalf}, kHalf},
                        {mixed, {LayerOf(q6, q4, q6), LayerOf(q4, q4, q4)}, q6, {kStepOf6, kHalf}, kHalf},
                        {eight, {LayerOf(q6, q4, q6), LayerOf(q8, q4, q8)}, q6, {kStepOf6, kStepOf8}, kHalf},
                        {five, {LayerOf(q8, q8, q6), LayerOf(q8, q8, q4)}, q6, {kStepOf8, kStepOf8}, kStepOf8},
                        {all6, {{q6, q6, q6, q6, q6, q6}}, q6, {kHalf, kHalf}, kHalf},
                        {three, {LayerOf(q6, q6, q6), LayerOf(q6, q6, q4)}, q8, {kStepOf6, kStepOf6}, kStepOf6}};
  for (const Case& each : cases) {
    ops::WeightFormats formats;
    const ModelWeights held = LoadBlocks(each.of, /*decoded=*/false, &formats);
    const ModelWeights decoded = LoadBlocks(each.of, /*decoded=*/true, &formats);
    SCOPED_TRACE(ops::ToString(formats));
    ops::WeightFormats expected;
    expected.head = each.head;
    if (each.layers.size() > 1) expected.layers = each.layers;
    if (each.layers.size() == 1) expected.all_layers = each.layers[0];
    EXPECT_EQ(formats, expected);
    EXPECT_LE(WorstOf(held.lm_head, decoded.lm_head), kStepOf8);
    for (int i = 0; i < 2; ++i) {
      const auto &ours = held.layers[i], &theirs = decoded.layers[i];
      EXPECT_LE(WorstOf(ours.attention.qkv, theirs.attention.qkv), each.qkv[i]);
      EXPECT_LE(WorstOf(ours.attention.o, theirs.attention.o), each.o);
      for (int expert = 0; expert < 2; ++expert) {
        EXPECT_LE(WorstOf(ours.moe->experts[expert].down, theirs.moe->experts[expert].down), kHalf);
        EXPECT_LE(WorstOf(ours.moe->experts[expert].gate_up, theirs.moe->experts[expert].gate_up), kHalf);
      }
    }
  }
}

// An adapter of experts is added to what blocks decode to; experts' matrices that it does not adapt are held as before.
TEST(GgufLoaderTest, AdaptersAreAddedToExpertsOfBlocks) {
  BlocksOf of;
  of.gate = kQ8_0;
  of.up = of.down[0] = of.down[1] = kQ8_0;
  BlocksOf other = of;  // gate and up by blocks of other sizes
  other.up = kQ6K;
  for (const BlocksOf& blocks : {of, other}) {
    ops::WeightFormats was, is;
    const ops::LayerFormats& layer_was = was.all_layers;
    const ModelWeights base = LoadBlocks(blocks, /*decoded=*/true, &was);
    const ModelWeights held = LoadBlocks(blocks, /*decoded=*/false, &was);
    for (const std::vector<std::string>& targets :
         {std::vector<std::string>{"gate_up_proj", "down_proj"}, {"gate_up_proj"}, {"down_proj"}}) {
      SCOPED_TRACE(absl::StrJoin(targets, " "));
      const TempDir dir;
      ModelConfig config;
      config.layers.resize(2);
      config.num_experts = 2;
      config.hidden = config.expert_intermediate = 256;
      WriteExpertAdapter(config, targets, dir);
      const auto adapter = checkpoint::LoraAdapter::Open(dir.path());
      ASSERT_TRUE(adapter.ok()) << adapter.status();
      const ModelWeights merged = LoadBlocks(blocks, /*decoded=*/false, &is, adapter->get());
      const bool gate_up = targets[0] == "gate_up_proj", down = targets.back() == "down_proj";
      EXPECT_EQ(is, ops::WeightFormats(layer_was.qkv, gate_up ? WeightFormat::kPlain : layer_was.gate_up,
                                       down ? WeightFormat::kPlain : layer_was.down, was.head));
      for (int64_t layer = 0; layer < 2; ++layer) {
        for (int64_t e = 0; e < 2; ++e) {
          const FfnWeights& found = merged.layers[layer].moe->experts[e];
          const auto expect = [&](const char* name, ops::Weight FfnWeights::*matrix, bool adapted) {
            const FfnWeights& from = (adapted ? base : held).layers[layer].moe->experts[e];
            EXPECT_EQ(UnpackedRows(found.*matrix), MergedExpert(**adapter, layer, e, name, from.*matrix))
                << name << " of " << e;
          };
          expect("gate_up_proj", &FfnWeights::gate_up, gate_up);
          expect("down_proj", &FfnWeights::down, down);
        }
      }
    }
  }
}

}  // namespace
}  // namespace switchyard::model
