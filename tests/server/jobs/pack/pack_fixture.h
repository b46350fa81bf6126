// Dataset and checkpoint roots for a test, with a tokenizer of one token a byte: 256 <|end|> (EOS), 257 <|bos|>.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/jobs/pack/packer.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {

inline std::string ReadFile(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

// "ab" = {97, 98}.
inline std::vector<int32_t> Bytes(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

inline std::vector<int32_t> Joined(std::initializer_list<std::vector<int32_t>> parts) {
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

inline constexpr char kTinyChat[] =
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}a:{% "
    "endif %}";

class PackTest : public testing::Test {
 protected:
  PackTest() {
    std::filesystem::create_directories(checkpoints_.path() + "/models/tiny");
    WriteModel("tokenizer.json", TinyTokenizerJson());
    WriteModel("tokenizer_config.json", R"({"eos_token": "<|end|>"})");
    WriteModel("chat_template.jinja", kTinyChat);
  }

  void WriteModel(const std::string& name, const std::string& contents) const {
    checkpoints_.Write("models/tiny/" + name, contents);
  }
  PackerOptions Options() const {
    return {.dataset_root = datasets_.path(), .checkpoint_root = checkpoints_.path(), .num_threads = 2};
  }
  static PackRequest Request() { return {.inputs = {"in.jsonl"}, .output = "out.bin", .tokenizer = "models/tiny"}; }
  absl::StatusOr<PackedData> Pack(const PackRequest& request) { return Pack(request, Options()); }
  static absl::StatusOr<PackedData> Pack(const PackRequest& request, const PackerOptions& options) {
    return Packer(options).Pack(request, [](int64_t, int64_t) { return true; });
  }
  // Packs this text as in.jsonl.
  absl::StatusOr<PackedData> PackText(const std::string& jsonl) {
    datasets_.Write("in.jsonl", jsonl);
    return Pack(Request());
  }
  std::string Output() const { return ReadFile(datasets_.path() + "/out.bin"); }
  // Returns the names of the files in the dataset root.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(datasets_.path())) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  const model::TempDir datasets_, checkpoints_;
};

}  // namespace switchyard::server
