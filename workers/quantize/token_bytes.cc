#include "workers/quantize/token_bytes.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"

namespace switchyard::quantize {
namespace {

constexpr int kMostDepth = 64;
constexpr int64_t kMostTokens = 1 << 24;
constexpr char kSpaceLetter[] = "\xe2\x96\x81";  // U+2581

bool IsByteLevel(const nlohmann::json& root) {
  for (const char* part : {"pre_tokenizer", "decoder"}) {
    if (root.contains(part) && absl::StrContains(JsonText(root[part]), "\"ByteLevel\"")) return true;
  }
  return false;
}

int32_t CodePoints(absl::string_view text) {
  return static_cast<int32_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

int32_t BytesOf(const std::string& token, bool byte_level) {
  if (byte_level) return CodePoints(token);
  if (token.size() == 6 && absl::StartsWith(token, "<0x") && token.back() == '>') return 1;
  return static_cast<int32_t>(absl::StrReplaceAll(token, {{kSpaceLetter, " "}}).size());
}

class Table {
 public:
  void Set(const nlohmann::json& id, int32_t bytes) {
    const auto index = IntegerIn(id, 0, kMostTokens);
    if (!index.has_value()) return;
    if (static_cast<int64_t>(bytes_.size()) <= *index) bytes_.resize(static_cast<size_t>(*index) + 1);
    bytes_[static_cast<size_t>(*index)] = bytes;
  }
  std::vector<int32_t> Take() { return std::move(bytes_); }

 private:
  std::vector<int32_t> bytes_;
};

}  // namespace

absl::StatusOr<std::vector<int32_t>> BytesOfTokens(absl::string_view tokenizer_json) {
  nlohmann::json root;
  if (ReadJson(tokenizer_json, LenientJson(kMostDepth), &root) || !root.is_object() || !root.contains("model") ||
      !root["model"].is_object() || !root["model"].contains("vocab")) {
    return absl::InvalidArgumentError("tokenizer.json: has no model.vocab");
  }
  const bool byte_level = IsByteLevel(root);
  Table table;
  const nlohmann::json& vocab = root["model"]["vocab"];
  for (const auto& [token, id] : vocab.items()) {
    if (vocab.is_object()) {
      table.Set(id, BytesOf(token, byte_level));
    } else if (id.is_array() && !id.empty() && id[0].is_string()) {  // [[token, score], …] by id
      table.Set(static_cast<int64_t>(std::stoll(token)), BytesOf(id[0].get<std::string>(), byte_level));
    }
  }
  if (!root.contains("added_tokens") || !root["added_tokens"].is_array()) return table.Take();
  for (const nlohmann::json& added : root["added_tokens"]) {
    if (!added.is_object() || !added.contains("id") || !added.contains("content") || !added["content"].is_string())
      continue;
    const bool special = added.contains("special") && added["special"] == true;
    table.Set(added["id"], special ? 0 : static_cast<int32_t>(added["content"].get<std::string>().size()));
  }
  return table.Take();
}

}  // namespace switchyard::quantize
