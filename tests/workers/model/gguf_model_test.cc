// GGUF models by HuggingFace's names: the fixtures of tests/golden/models as llama.cpp's converter wrote them
// (tests/golden/gguf/models.py) have the same config and the same tensors, bit for bit.
#include <cstring>
#include <functional>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/workers/checkpoint/gguf_bytes.h"
#include "tests/workers/model/small_gguf.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/gguf/gguf_config.h"
#include "workers/checkpoint/gguf/gguf_matrix.h"
#include "workers/checkpoint/gguf/gguf_names.h"
#include "workers/checkpoint/gguf/gguf_weights.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"

namespace switchyard::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::GgufKey;
using checkpoint::GgufModelTensor;
using checkpoint::GgufU32;
using checkpoint::GgufU32Key;
using ::testing::HasSubstr;

std::string HfFolder(const std::string& name) { return absl::StrCat("tests/golden/models/", name); }
std::string GgufPath(const std::string& name) { return absl::StrCat("tests/golden/gguf/models/", name, ".gguf"); }

class GgufFixtureTest : public ::testing::TestWithParam<const char*> {};

// But for what the converter does not write: ids of a tokenizer, Mixtral's window, OLMoE's clamp, and whether
// weights are renormalized, which llama.cpp does in Qwen3's models always.
TEST_P(GgufFixtureTest, HasTheConfig) {
  const std::string name = GetParam();
  auto expected = ReadModelConfig(HfFolder(name));
  ASSERT_TRUE(expected.ok()) << expected.status();
  if (name == "mixtral-window") {
    for (LayerConfig& layer : expected->layers) layer.window = 0;
  }
  if (name == "olmoe-clip") expected->clip_qkv = 0;
  if (absl::StartsWith(name, "qwen3")) expected->renormalize = true;
  const auto checkpoint = GgufCheckpoint::Open(GgufPath(name));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto text = checkpoint::GgufConfigText(*checkpoint);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto found = ParseModelConfig(*text, "");
  ASSERT_TRUE(found.ok()) << found.status() << "\n" << *text;
  EXPECT_EQ(found->model_type, expected->model_type);
  EXPECT_EQ(found->architecture, expected->architecture);
  EXPECT_EQ(found->vocab_size, expected->vocab_size);
  EXPECT_EQ(found->hidden, expected->hidden);
  EXPECT_EQ(found->context, expected->context);
  ASSERT_EQ(found->num_layers(), expected->num_layers());
  for (int64_t i = 0; i < found->num_layers(); ++i) {
    EXPECT_EQ(found->layers[i].moe, expected->layers[i].moe) << i;
    EXPECT_EQ(found->layers[i].window, expected->layers[i].window) << i;
  }
  EXPECT_EQ(found->num_heads, expected->num_heads);
  EXPECT_EQ(found->num_kv_heads, expected->num_kv_heads);
  EXPECT_EQ(found->head_dim, expected->head_dim);
  EXPECT_EQ(found->qkv_bias, expected->qkv_bias);
  EXPECT_EQ(found->o_bias, expected->o_bias);
  EXPECT_EQ(found->qk_norm, expected->qk_norm);
  EXPECT_EQ(found->clip_qkv, expected->clip_qkv);
  EXPECT_EQ(found->rope.kind, expected->rope.kind);
  EXPECT_EQ(found->rope.theta, expected->rope.theta);
  EXPECT_EQ(found->rope.rotary_dim, expected->rope.rotary_dim);
  EXPECT_EQ(found->rope.factor, expected->rope.factor);
  EXPECT_EQ(found->rope.original_max_positions, expected->rope.original_max_positions);
  EXPECT_EQ(found->num_experts, expected->num_experts);
  EXPECT_EQ(found->top_k, expected->top_k);
  EXPECT_EQ(found->expert_intermediate, expected->expert_intermediate);
  EXPECT_EQ(found->shared_intermediate, expected->shared_intermediate);
  EXPECT_EQ(found->dense_intermediate, expected->dense_intermediate);
  EXPECT_EQ(found->renormalize, expected->renormalize);
  EXPECT_EQ(found->norm_eps, expected->norm_eps);
  EXPECT_EQ(found->tie_embeddings, expected->tie_embeddings);
  EXPECT_EQ(found->file_dtype, expected->file_dtype);
}

std::vector<float> FloatsOf(const checkpoint::TensorLocation& place) {
  std::string bytes(static_cast<size_t>(place.entry->bytes), '\0');
  EXPECT_TRUE(place.file->Read(place.entry->begin, place.entry->bytes, bytes.data()).ok());
  const auto dtype = checkpoint::ParseSafetensorsDType(place.entry->dtype);
  std::vector<float> values(bytes.size() / DTypeBytes(*dtype));
  VisitDType(*dtype, [&]<class Elem>() {
    for (size_t i = 0; i < values.size(); ++i) {
      Elem value;
      std::memcpy(&value, bytes.data() + i * sizeof(Elem), sizeof(Elem));
      values[i] = static_cast<float>(value);
    }
  });
  return values;
}

// Of blocks, or of rows in another order: in pieces of `piece` rows at least.
std::vector<float> FloatsOf(const Checkpoint& checkpoint, const std::string& name, int64_t piece) {
  const checkpoint::TensorLocation place = checkpoint.Find(name);
  const auto matrix = checkpoint::OpenMatrix(checkpoint, nullptr, name, place.entry->shape);
  EXPECT_TRUE(matrix.ok()) << matrix.status();
  if (!matrix.ok() || *matrix == nullptr) return FloatsOf(place);
  const checkpoint::MatrixReader& reader = **matrix;
  piece = (piece + reader.row_step() - 1) / reader.row_step() * reader.row_step();
  const auto read = [](const checkpoint::WeightsFile& file, int64_t begin, absl::Span<uint8_t> to) {
    return file.Read(begin, static_cast<int64_t>(to.size()), to.data());
  };
  checkpoint::MatrixScratch scratch;
  std::vector<float> values(static_cast<size_t>(reader.rows() * reader.columns()));
  for (int64_t row = 0; row < reader.rows(); row += piece) {
    const int64_t count = std::min(piece, reader.rows() - row);
    const absl::Status status = reader.Read(row, count, values.data() + row * reader.columns(), read, &scratch);
    EXPECT_TRUE(status.ok()) << status;
  }
  return values;
}

TEST_P(GgufFixtureTest, HasTheTensors) {
  const auto expected = Checkpoint::Open(HfFolder(GetParam()));
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto found = Checkpoint::Open(GgufPath(GetParam()));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->TensorNames(), expected->TensorNames());
  for (const std::string& name : found->TensorNames()) {
    const checkpoint::TensorLocation place = expected->Find(name);
    ASSERT_NE(place.file, nullptr) << name;
    EXPECT_EQ(found->Find(name).entry->shape, place.entry->shape) << name;
    const std::vector<float> values = FloatsOf(place);
    EXPECT_EQ(FloatsOf(*found, name, 1 << 20), values) << name;
    EXPECT_EQ(FloatsOf(*found, name, 3), values) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GgufFixtureTest,
                         ::testing::Values("mixtral-gqa", "mixtral-window", "qwen2-shared", "qwen3-qknorm",
                                           "qwen3-yarn", "olmoe-clip"),
                         [](const auto& each) {
                           return absl::StrReplaceAll(each.param, {{"-", "_"}});
                         });

TEST(GgufModelTest, ReadsTheSmallGguf) {
  const GgufRead read = ReadSmallGguf(SmallGguf());
  ASSERT_TRUE(read.config.ok()) << read.config.status();
  EXPECT_TRUE(ParseModelConfig(*read.config, "").ok()) << *read.config;
  ASSERT_TRUE(read.tensors.ok()) << read.tensors.status();
  EXPECT_EQ(read.tensors->size(), 9u);
  const auto config = nlohmann::json::parse(*read.config);
  EXPECT_EQ(config["moe_intermediate_size"], 32);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_FALSE(config.contains("eos_token_id"));
}

TEST(GgufModelTest, ReadsOptionalKeys) {
  SmallGguf model("qwen2moe");
  model.SetInt("attention.sliding_window", 5);
  model.keys["norm"] = GgufKey("qwen2moe.expert_weights_norm", GgufValueType::kBool, "\x01");
  model.keys["eos"] = GgufU32Key("tokenizer.ggml.eos_token_id", 7);
  model.keys["eot"] = GgufU32Key("tokenizer.ggml.eot_token_id", 6);
  model.keys["eom"] = GgufU32Key("tokenizer.ggml.eom_token_id", 7);
  model.keys["bos"] = GgufU32Key("tokenizer.ggml.bos_token_id", 1);
  model.SetText("rope.scaling.type", "linear");
  model.SetInt("rope.scaling.factor", 4);
  model.q8["blk.0.ffn_up_shexp.weight"] = {64, 32};
  model.f32["blk.0.ffn_gate_inp_shexp.weight"] = {32};
  const GgufRead read = ReadSmallGguf(model);
  ASSERT_TRUE(read.config.ok()) << read.config.status();
  const auto config = ParseModelConfig(*read.config, "");
  ASSERT_TRUE(config.ok()) << config.status() << *read.config;
  EXPECT_EQ(config->layers[0].window, 5);
  EXPECT_TRUE(config->renormalize);
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{7, 6}));
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_EQ(config->rope.kind, ops::RopeKind::kLinear);
  EXPECT_EQ(config->rope.factor, 4);
  EXPECT_EQ(config->context, 64);  // context_length has the factor in it
  EXPECT_EQ(config->shared_intermediate, 64);
  ASSERT_TRUE(read.tensors.ok()) << read.tensors.status();
  for (const GgufModelTensor& each : *read.tensors) {
    if (absl::EndsWith(each.name, "shared_expert_gate.weight")) {
      EXPECT_EQ(each.shape, (std::vector<int64_t>{1, 32}));
    }
  }
}

TEST(GgufModelTest, ReadsExpertsOfOtherLayouts) {
  SmallGguf fused;
  fused.q8.erase("blk.0.ffn_gate_exps.weight");
  fused.q8.erase("blk.0.ffn_up_exps.weight");
  fused.q8["blk.0.ffn_gate_up_exps.weight"] = {2, 64, 32};
  SmallGguf each;
  each.q8.clear();
  for (const char* name : {"gate.0", "gate.1", "up.0", "up.1", "down.0", "down.1"}) {
    each.q8[absl::StrCat("blk.0.ffn_", name, ".weight")] = {32, 32};
  }
  for (const SmallGguf& model : {fused, each}) {
    const GgufRead read = ReadSmallGguf(model);
    ASSERT_TRUE(read.config.ok()) << read.config.status();
    EXPECT_EQ(nlohmann::json::parse(*read.config)["moe_intermediate_size"], 32);
    ASSERT_TRUE(read.tensors.ok()) << read.tensors.status();
    std::map<std::string, int64_t> begins;
    for (const GgufModelTensor& tensor : *read.tensors) begins[tensor.name] = tensor.begin;
    for (const char* part : {"gate", "up", "down"}) {
      for (int e = 0; e < 2; ++e) {
        EXPECT_TRUE(begins.contains(absl::StrCat("model.layers.0.mlp.experts.", e, ".", part, "_proj.weight")));
      }
    }
    if (model.q8.contains("blk.0.ffn_gate_up_exps.weight")) {
      const int64_t part_bytes = 32 * 34;
      EXPECT_EQ(begins["model.layers.0.mlp.experts.0.up_proj.weight"],
                begins["model.layers.0.mlp.experts.0.gate_proj.weight"] + part_bytes);
      EXPECT_EQ(begins["model.layers.0.mlp.experts.1.gate_proj.weight"],
                begins["model.layers.0.mlp.experts.0.gate_proj.weight"] + 2 * part_bytes);
    }
  }
}

// Llama 3's scales of frequencies, which a file has as a tensor.
TEST(GgufModelTest, ReadsScalesOfFrequencies) {
  SmallGguf model;
  model.f32["rope_freqs.weight"] = {8};
  const GgufRead read = ReadSmallGguf(model);
  ASSERT_TRUE(read.config.ok()) << read.config.status();
  const auto config = ParseModelConfig(*read.config, "");
  ASSERT_TRUE(config.ok()) << config.status() << *read.config;
  EXPECT_EQ(config->rope.kind, ops::RopeKind::kLongRope);
  EXPECT_EQ(config->rope.short_factor.size(), 8u);
  EXPECT_EQ(config->rope.short_factor, config->rope.long_factor);
  EXPECT_EQ(config->rope.attention_factor, 1.0);
  ASSERT_TRUE(read.tensors.ok());
  EXPECT_EQ(read.tensors->size(), 9u);
  model.f32["rope_freqs.weight"] = {7};
  EXPECT_THAT(ReadSmallGguf(model).config.status().message(),
              HasSubstr("m.gguf: tensor \"rope_freqs.weight\": expected F32 [8], found F32 [7]"));
}

TEST(GgufModelTest, RefusesConfigsThatItDoesNotUnderstand) {
  struct Case {
    std::function<void(SmallGguf*)> change;
    std::string error;
  };
  const Case cases[] = {
      {[](SmallGguf* m) { m->architecture = "mamba"; },
       "unknown architecture \"mamba\"; known: llama (mixtral), qwen2moe"},
      {[](SmallGguf* m) { m->SetInt("expert_count", 0); }, "a model of architecture \"qwen3moe\" without experts"},
      {[](SmallGguf* m) { m->SetInt("block_count", 0); }, "key \"qwen3moe.block_count\": expected 1 to 4096, found 0"},
      {[](SmallGguf* m) { m->SetInt("block_count", 5000); }, "key \"qwen3moe.block_count\": expected 1 to 4096"},
      {[](SmallGguf* m) { m->keys.erase("block_count"); }, "key \"qwen3moe.block_count\": is missing"},
      {[](SmallGguf* m) { m->SetText("block_count", "1"); },
       "key \"qwen3moe.block_count\": expected an integer, found string"},
      {[](SmallGguf* m) { m->keys.erase("context_length"); }, "key \"qwen3moe.context_length\": is missing"},
      {[](SmallGguf* m) { m->SetInt("attention.head_count", 3); }, "3 does not divide the embedding length 32"},
      {[](SmallGguf* m) { m->SetInt("attention.value_length", 8); },
       "heads whose keys have 16 elements must have values"},
      {[](SmallGguf* m) { m->SetInt("rope.dimension_count", 8); }, "expected all 16 elements of a head, found 8"},
      {[](SmallGguf* m) { m->SetText("rope.scaling.type", "longrope"); },
       "expected none, linear or yarn, found \"longrope\""},
      {[](SmallGguf* m) { m->SetText("rope.scaling.type", "yarn"); },
       "key \"qwen3moe.rope.scaling.factor\": is missing"},
      {[](SmallGguf* m) { m->SetInt("expert_gating_func", 2); }, "expected softmax (1), found 2"},
      {[](SmallGguf* m) { m->SetInt("expert_weights_scale", 3); }, "expected 1, found 3"},
      {[](SmallGguf* m) { m->SetInt("attention.clamp_kqv", 3); },
       "key \"qwen3moe.attention.clamp_kqv\": 3, but this family"},
      {[](SmallGguf* m) { m->f32.erase("token_embd.weight"); }, "tensor \"token_embd.weight\": is missing"},
      {[](SmallGguf* m) { m->f32["token_embd.weight"] = {32}; }, "expected 2 dimensions, found [32]"},
      {[](SmallGguf* m) { m->f32.erase("blk.0.ffn_gate_inp.weight"); },
       "tensor \"blk.0.ffn_gate_inp.weight\": is missing"},
      {[](SmallGguf* m) { m->q8.clear(); }, "tensor \"blk.0.ffn_up.0.weight\": is missing"},
      {[](SmallGguf* m) {
         m->keys["eos"] = GgufKey("tokenizer.ggml.eos_token_id", GgufValueType::kInt32, GgufU32(UINT32_MAX));
       },
       "expected a token's id, found -1"},
  };
  for (const Case& each : cases) {
    SmallGguf model;
    each.change(&model);
    EXPECT_THAT(ReadSmallGguf(model).config.status().message(), HasSubstr(each.error));
  }
}

TEST(GgufModelTest, RefusesTensorsThatItDoesNotUnderstand) {
  struct Case {
    std::string name;
    std::vector<int64_t> shape;
    std::string error;
  };
  const Case cases[] = {
      {"blk.0.attn_qkv.weight",
       {96, 32},
       "tensor \"blk.0.attn_qkv.weight\": architecture \"qwen3moe\" has no such tensor"},
      {"blk.1.attn_norm.weight", {32}, "tensor \"blk.1.attn_norm.weight\": block 1, but there are 1"},
      {"blk.-1.attn_norm.weight", {32}, "block -1, but there are 1"},
      {"blk.00.attn_norm.weight", {32}, "has no such tensor"},
      {"blk.", {32}, "has no such tensor"},
      {"lm_head.weight", {8, 32}, "tensor \"lm_head.weight\": architecture \"qwen3moe\" has no such tensor"},
      {"blk.0.ffn_gate.2.weight", {32, 32}, "expert 2, but there are 2"},
      {"blk.0.ffn_gate.0.weight", {32, 32}, "two tensors are \"model.layers.0.mlp.experts.0.gate_proj.weight\""},
      {"blk.0.ffn_up_exps.weight", {3, 32, 32}, "[3, 32, 32]: expected 3 dimensions, the first of 2 experts"},
      {"blk.0.ffn_up_exps.weight", {2, 32}, "[2, 32]: expected 3 dimensions"},
      {"blk.0.ffn_gate_up_exps.weight", {2, 33, 32}, "expected gate and up rows, an even number"},
      {"blk.0.attn_q.weight", {48, 32}, "[48, 32]: expected 2 heads of 16 rows, found 48 rows"},
      {"blk.0.attn_k.weight", {32, 32}, "expected 1 heads of 16 rows, found 32 rows"},
  };
  for (const Case& each : cases) {
    SmallGguf model;
    model.q8.erase(each.name);
    model.f32[each.name] = each.shape;
    EXPECT_THAT(ReadSmallGguf(model).tensors.status().message(), HasSubstr(each.error)) << each.name;
  }
}

TEST(GgufModelTest, RefusesTypesWithoutADecoder) {
  TempDir dir;
  const auto checkpoint = Checkpoint::Open(dir.Write("m.gguf", SmallGguf().Bytes()));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const checkpoint::TensorLocation place = checkpoint->Find("model.embed_tokens.weight");
  checkpoint::TensorEntry entry = *place.entry;
  entry.dtype = "IQ3_XXS";
  const auto matrix = checkpoint::GgufMatrix::Open({place.file, &entry}, "model.embed_tokens.weight", entry.shape);
  EXPECT_EQ(matrix.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(matrix.status().message(),
              HasSubstr("m.gguf: tensor \"model.embed_tokens.weight\": type IQ3_XXS cannot be loaded; types that can: "
                        "F32, F16"));
}

TEST(GgufModelTest, KnowsTheOrderOfInterleavedRows) {
  const int64_t stored_rows_of_two_heads[] = {0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11};
  for (int64_t row = 0; row < 12; ++row) EXPECT_EQ(checkpoint::InterleavedRow(row, 6), stored_rows_of_two_heads[row]);
}

}  // namespace
}  // namespace switchyard::model
