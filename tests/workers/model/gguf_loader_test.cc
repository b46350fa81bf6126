// A GGUF file's heads, whose rows are stored in another order, through the loader's pieces.
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/workers/checkpoint/gguf_bytes.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/gguf/gguf_names.h"
#include "workers/model/weights/loader.h"

namespace switchyard::model {
namespace {

using checkpoint::GgufF32Key;
using checkpoint::GgufRow;
using checkpoint::GgufTextKey;
using checkpoint::GgufU32Key;

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

}  // namespace
}  // namespace switchyard::model
