// A small GGUF model whose keys and tensors a test changes, and what our readers make of it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/base/gguf/gguf_file.h"
#include "tests/workers/checkpoint/gguf_bytes.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/gguf/gguf_config.h"
#include "workers/checkpoint/gguf/gguf_names.h"

namespace switchyard::model {

// One block: Qwen3's, two experts of width 32, hidden 32, two heads.
struct SmallGguf {
  std::string architecture;
  std::map<std::string, std::string> keys = {};     // behind the architecture's name, each as the file has it
  std::map<std::string, std::vector<int64_t>> f32;  // tensors of F32
  std::map<std::string, std::vector<int64_t>> q8;   // of Q8_0

  explicit SmallGguf(std::string name = "qwen3moe") : architecture(std::move(name)) {
    const std::pair<const char*, uint32_t> ints[] = {
        {"block_count", 1},       {"context_length", 64},      {"embedding_length", 32},      {"expert_count", 2},
        {"expert_used_count", 1}, {"attention.head_count", 2}, {"attention.head_count_kv", 1}};
    for (const auto& [key, value] : ints) SetInt(key, value);
    keys["attention.layer_norm_rms_epsilon"] = checkpoint::GgufF32Key(Key("attention.layer_norm_rms_epsilon"), 1e-6F);
    f32 = {{"token_embd.weight", {8, 32}}, {"blk.0.ffn_gate_inp.weight", {2, 32}}, {"blk.0.attn_q.weight", {32, 32}}};
    for (const char* part : {"gate", "up", "down"}) q8[absl::StrCat("blk.0.ffn_", part, "_exps.weight")] = {2, 32, 32};
  }
  std::string Key(const std::string& key) const { return architecture + "." + key; }
  void SetInt(const std::string& key, uint32_t value) { keys[key] = checkpoint::GgufU32Key(Key(key), value); }
  void SetText(const std::string& key, const std::string& value) {
    keys[key] = checkpoint::GgufTextKey(Key(key), value);
  }
  std::string Bytes() const {
    checkpoint::GgufParts parts = {.keys = {checkpoint::GgufTextKey("general.architecture", architecture)}};
    for (const auto& [unused, key] : keys) parts.keys.push_back(key);
    const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, uint32_t type,
                         int64_t bytes_of_32) {
      int64_t elements = 1;
      for (const int64_t dim : shape) elements *= dim;
      parts.rows.push_back(checkpoint::GgufRow(name, shape, type, parts.data.size()));
      parts.data.append(static_cast<size_t>((elements / 32 * bytes_of_32 + 63) / 32 * 32), '\x01');
    };
    for (const auto& [name, shape] : f32) add(name, shape, 0, 128);
    for (const auto& [name, shape] : q8) add(name, shape, 8, 34);
    return checkpoint::GgufBytes(parts);
  }
};

struct GgufRead {
  absl::StatusOr<std::string> config;
  absl::StatusOr<std::vector<checkpoint::GgufModelTensor>> tensors;
};
inline GgufRead ReadSmallGguf(const SmallGguf& model) {
  TempDir dir;
  const auto checkpoint = GgufCheckpoint::Open(dir.Write("m.gguf", model.Bytes()));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  if (!checkpoint.ok()) return {checkpoint.status(), checkpoint.status()};
  return {checkpoint::GgufConfigText(*checkpoint), checkpoint::ListGgufModelTensors(*checkpoint)};
}

}  // namespace switchyard::model
