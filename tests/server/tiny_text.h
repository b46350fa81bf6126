// A text processor with a simple tokenizer: token id = byte, then <|end|> = 256, <|bos|> = 257 (put before a text with
// special tokens) and <|far|> = 258, which is outside TinyModel()'s vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/config.h"
#include "server/engine/request.h"
#include "server/text/text.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {

inline constexpr int32_t kEnd = 256;
inline constexpr int32_t kBos = 257;
inline constexpr int32_t kFar = 258;

// Returns the character with which byte-level vocabularies spell a byte: itself if it is printable, else one from
// U+0100 on.
inline std::string ByteSpelling(int byte) {
  const auto prints = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  int code = byte;
  if (!prints(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += prints(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

inline std::string TinyTokenizerJson() {
  using nlohmann::json;
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[ByteSpelling(byte)] = byte;
  json added = json::array();
  for (const auto& [id, content] :
       {std::pair(kEnd, "<|end|>"), std::pair(kBos, "<|bos|>"), std::pair(kFar, "<|far|>")}) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const json bos = {{"SpecialToken", {{"id", "<|bos|>"}, {"type_id", 0}}}};
  const auto sequence = [](const char* id, int type) { return json{{"Sequence", {{"id", id}, {"type_id", type}}}}; };
  const json root = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", json::array({bos, sequence("A", 0)})},
        {"pair", json::array({bos, sequence("A", 0), sequence("B", 1)})},
        {"special_tokens",
         {{"<|bos|>", {{"id", "<|bos|>"}, {"ids", json::array({kBos})}, {"tokens", json::array({"<|bos|>"})}}}}}}},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"vocab", vocab},
        {"merges", json::array()}}}};
  return root.dump();
}

struct TinyTextOptions {
  bool tokenizer = true;
  std::string tokenizer_json = TinyTokenizerJson();
  std::string chat_template =
      "{% for m in messages %}{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}A:{% endif %}";  // "" = none
  std::string generation_config;                      // "" = none
};

inline std::unique_ptr<const text::TextProcessor> TinyText(const TinyTextOptions& options = {}) {
  model::TempDir dir;
  ServerConfig config;
  config.model = dir.path();
  if (options.tokenizer) config.tokenizer = dir.Write("tokenizer.json", options.tokenizer_json);
  if (!options.chat_template.empty()) config.chat_template = dir.Write("template.jinja", options.chat_template);
  if (!options.generation_config.empty()) dir.Write("generation_config.json", options.generation_config);
  absl::StatusOr<std::unique_ptr<const text::TextProcessor>> room = text::TextProcessor::Load(config);
  EXPECT_TRUE(room.ok()) << room.status();
  return room.ok() ? *std::move(room) : nullptr;
}

inline ServedModel TinyModel() {
  ServedModel model;
  model.name = "tiny";
  model.vocab_size = kFar;
  model.max_model_len = 100;
  model.eos_token_ids = {kEnd};
  return model;
}

}  // namespace switchyard::server
