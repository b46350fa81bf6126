#include "server/text/generation_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"
#include "server/api/convert.h"

namespace switchyard::text {
namespace {

using nlohmann::json;

constexpr char kFile[] = "generation_config.json";
constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 16;

struct Range {
  double min;
  double max;
  bool open = false;  // without min itself
};

absl::Status Wrong(const std::string& path, const char* key, const char* expected, const json& found) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", key, ": expected ", expected, ", found ", found.dump().substr(0, 64)));
}

// Reads a number within the range if the key is there and not null.  The ranges are those of the request's fields, so a
// default never makes a request fail that leaves the field unset.
template <class Value>
absl::Status ReadNumber(const json& root, const std::string& path, const char* key, Range range,
                        std::optional<Value>* out) {
  const auto it = root.find(key);
  if (it == root.end() || it->is_null()) return absl::OkStatus();
  const char* kind = std::numeric_limits<Value>::is_integer ? "a whole number within " : "a number within ";
  const std::string expected = absl::StrCat(kind, range.open ? "(" : "[", range.min, ", ", range.max, "]");
  if (!it->is_number()) return Wrong(path, key, expected.c_str(), *it);
  const double value = it->get<double>();
  const bool fits = value >= range.min && value <= range.max && !(range.open && value == range.min);
  const bool whole = !std::numeric_limits<Value>::is_integer || value == std::floor(value);
  if (!fits || !whole) return Wrong(path, key, expected.c_str(), *it);
  *out = static_cast<Value>(value);
  return absl::OkStatus();
}

absl::Status ReadEos(const json& root, const std::string& path, std::vector<int32_t>* out) {
  const auto it = root.find("eos_token_id");
  if (it == root.end() || it->is_null()) return absl::OkStatus();
  const json list = it->is_array() ? *it : json::array({*it});
  for (const json& id : list) {
    const std::optional<int64_t> token = IntegerIn(id, 0, INT32_MAX);
    if (!token) return Wrong(path, "eos_token_id", "token ids", *it);
    out->push_back(static_cast<int32_t>(*token));
  }
  return absl::OkStatus();
}

absl::Status ReadStopStrings(const json& root, const std::string& path, std::vector<std::string>* out) {
  const auto it = root.find("stop_strings");
  if (it == root.end() || it->is_null()) return absl::OkStatus();
  const json list = it->is_array() ? *it : json::array({*it});
  const server::RequestLimits limits;
  const auto good = [&](const json& stop) {
    return stop.is_string() && !stop.get_ref<const std::string&>().empty() &&
           stop.get_ref<const std::string&>().size() <= limits.max_stop_bytes;
  };
  if (list.size() > static_cast<size_t>(limits.max_stop_strings) || !std::all_of(list.begin(), list.end(), good)) {
    const std::string expected =
        absl::StrCat("at most ", limits.max_stop_strings, " strings of 1 to ", limits.max_stop_bytes, " bytes each");
    return Wrong(path, "stop_strings", expected.c_str(), *it);
  }
  *out = list.get<std::vector<std::string>>();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const ModelDir& dir) {
  GenerationDefaults defaults;
  const std::string path = absl::StrCat(dir.path(), "/", kFile);
  const absl::StatusOr<std::string> text = dir.ReadSmallFile(kFile, kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return defaults;
  if (!text.ok()) return absl::Status(text.status().code(), absl::StrCat(dir.path(), "/", text.status().message()));
  ASSIGN_OR_RETURN(const json root, ParseJsonObject(path, *text, LenientJson(kMaxDepth)));
  RETURN_IF_ERROR(ReadNumber(root, path, "temperature", {0, 100}, &defaults.temperature));
  RETURN_IF_ERROR(ReadNumber(root, path, "top_p", {.min = 0, .max = 1, .open = true}, &defaults.top_p));
  RETURN_IF_ERROR(ReadNumber(root, path, "top_k", {-1, 1e9}, &defaults.top_k));
  RETURN_IF_ERROR(ReadNumber(root, path, "min_p", {0, 1}, &defaults.min_p));
  RETURN_IF_ERROR(
      ReadNumber(root, path, "repetition_penalty", {.min = 0, .max = 10, .open = true}, &defaults.repetition_penalty));
  RETURN_IF_ERROR(ReadNumber(root, path, "max_new_tokens", {1, INT32_MAX}, &defaults.max_new_tokens));
  RETURN_IF_ERROR(ReadNumber(root, path, "min_new_tokens", {0, INT32_MAX}, &defaults.min_new_tokens));
  RETURN_IF_ERROR(ReadStopStrings(root, path, &defaults.stop_strings));
  RETURN_IF_ERROR(ReadEos(root, path, &defaults.eos_token_ids));
  return defaults;
}

}  // namespace switchyard::text
