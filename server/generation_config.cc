#include "server/generation_config.h"

#include <cmath>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = 1 << 20;

absl::Status Wrong(const std::string& path, const char* key, const char* expected, const json& found) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", key, ": expected ", expected, ", found ", found.dump().substr(0, 64)));
}

// Reads a number within [low, high] if the key is there and not null.
template <class Value>
absl::Status ReadNumber(const json& root, const std::string& path, const char* key, double low, double high,
                        std::optional<Value>* out) {
  const auto it = root.find(key);
  if (it == root.end() || it->is_null()) return absl::OkStatus();
  const std::string expected = absl::StrCat("a number within [", low, ", ", high, "]");
  if (!it->is_number()) return Wrong(path, key, expected.c_str(), *it);
  const double value = it->get<double>();
  if (!(value >= low && value <= high)) return Wrong(path, key, expected.c_str(), *it);
  *out = static_cast<Value>(value);
  return absl::OkStatus();
}

absl::Status ReadEos(const json& root, const std::string& path, std::vector<int32_t>* out) {
  const auto it = root.find("eos_token_id");
  if (it == root.end() || it->is_null()) return absl::OkStatus();
  const json list = it->is_array() ? *it : json::array({*it});
  for (const json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      return Wrong(path, "eos_token_id", "token ids", *it);
    }
    out->push_back(id.get<int32_t>());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::string& model_dir) {
  GenerationDefaults defaults;
  const std::string path = model_dir + "/generation_config.json";
  std::ifstream file(path);
  if (!file) return defaults;
  std::ostringstream text;
  text << file.rdbuf();
  if (text.str().size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", text.str().size(), " bytes, limit ", kMaxFileBytes));
  }
  const json root = json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  RETURN_IF_ERROR(ReadNumber(root, path, "temperature", 0, 100, &defaults.temperature));
  RETURN_IF_ERROR(ReadNumber(root, path, "top_p", 0, 1, &defaults.top_p));
  RETURN_IF_ERROR(ReadNumber(root, path, "top_k", -1, INT32_MAX, &defaults.top_k));
  RETURN_IF_ERROR(ReadNumber(root, path, "min_p", 0, 1, &defaults.min_p));
  RETURN_IF_ERROR(ReadNumber(root, path, "repetition_penalty", 0.01, 10, &defaults.repetition_penalty));
  RETURN_IF_ERROR(ReadNumber(root, path, "max_new_tokens", 1, INT32_MAX, &defaults.max_new_tokens));
  RETURN_IF_ERROR(ReadEos(root, path, &defaults.eos_token_ids));
  return defaults;
}

}  // namespace switchyard
