#include "workers/model/config/config_reader.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_join.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/nearest_name.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/strict_json.h"
#include "workers/model/config/config.h"

namespace switchyard::model {
namespace {

constexpr size_t kNearEdits = 2;
constexpr size_t kShortestHinted = 5;  // shorter keys are near to anything

bool IsNear(absl::string_view a, absl::string_view b) {
  return a.size() >= kShortestHinted && b.size() >= kShortestHinted && EditDistance(a, b) <= kNearEdits;
}

std::string Found(const nlohmann::json& value) { return Excerpt(JsonText(value)); }

std::string RangeText(IntRange range) { return absl::StrCat("an integer in [", range.min, ", ", range.max, "]"); }

}  // namespace

absl::StatusOr<nlohmann::json> ParseConfigObject(absl::string_view file, absl::string_view text) {
  ASSIGN_OR_RETURN(nlohmann::json root, ParseStrictJson(file, text, {.max_depth = kMaxConfigDepth}));
  if (!root.is_object()) return absl::InvalidArgumentError(absl::StrCat(file, ": not an object"));
  return root;
}

const nlohmann::json* ConfigReader::Find(absl::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  const auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ConfigReader::Know(absl::Span<const char* const> keys) {
  for (const char* key : keys) Find(key);
}

std::string ConfigReader::FirstOf(std::initializer_list<const char*> keys) {
  const char* first = nullptr;
  for (const char* key : keys) {
    if (Has(key) && first == nullptr) first = key;
  }
  return first != nullptr ? first : *keys.begin();
}

bool ConfigReader::AllGood(std::initializer_list<absl::string_view> keys) const {
  return std::none_of(problems_.begin(), problems_.end(), [&](const auto& problem) {
    return std::find(keys.begin(), keys.end(), problem.first) != keys.end();
  });
}

void ConfigReader::Missing(absl::string_view key) {
  const std::string near = NearestUnknown(key);
  Problem(key, near.empty() ? "missing" : absl::StrCat("missing; is it misspelled as \"", near, "\"?"));
}

int64_t ConfigReader::Int(absl::string_view key, std::optional<int64_t> default_value, IntRange range) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    if (!default_value.has_value()) Missing(key);
    return default_value.value_or(range.min);
  }
  if (const std::optional<int64_t> number = IntegerIn(*value, range.min, range.max)) return *number;
  Problem(key, "expected ", RangeText(range), ", found ", Found(*value));
  return range.min;
}

double ConfigReader::Number(absl::string_view key, std::optional<double> default_value, double min, double max,
                            bool open) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    if (!default_value.has_value()) Missing(key);
    return default_value.value_or(max);
  }
  const double out = value->is_number() ? value->get<double>() : std::nan("");
  if (std::isfinite(out) && (open ? out > min : out >= min) && out <= max) return out;
  Problem(key, "expected a number in ", open ? "(" : "[", min, ", ", max, "], found ", Found(*value));
  return max;
}

bool ConfigReader::Bool(absl::string_view key, bool default_value) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return default_value;
  if (value->is_boolean()) return value->get<bool>();
  Problem(key, "expected true or false, found ", Found(*value));
  return default_value;
}

std::string ConfigReader::String(absl::string_view key, absl::string_view default_value) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::string(default_value);
  if (value->is_string()) return value->get<std::string>();
  Problem(key, "expected a string, found ", Found(*value));
  return std::string(default_value);
}

std::vector<int64_t> ConfigReader::Ints(absl::string_view key, IntRange range) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return {};
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  std::vector<int64_t> out;
  for (const nlohmann::json& item : list) {
    if (const std::optional<int64_t> number = IntegerIn(item, range.min, range.max)) {
      out.push_back(*number);
      continue;
    }
    Problem(key, "expected ", RangeText(range), " or a list of such, found ", Found(*value));
    return {};
  }
  return out;
}

std::vector<double> ConfigReader::Numbers(absl::string_view key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return {};
  const auto is_good = [](const nlohmann::json& item) { return item.is_number() && std::isfinite(item.get<double>()); };
  if (value->is_array() && std::all_of(value->begin(), value->end(), is_good)) return value->get<std::vector<double>>();
  Problem(key, "expected a list of numbers, found ", Found(*value));
  return {};
}

std::vector<std::string> ConfigReader::Strings(absl::string_view key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return {};
  const auto is_good = [](const nlohmann::json& item) { return item.is_string(); };
  if (value->is_array() && std::all_of(value->begin(), value->end(), is_good))
    return value->get<std::vector<std::string>>();
  Problem(key, "expected a list of strings, found ", Found(*value));
  return {};
}

const nlohmann::json* ConfigReader::Object(absl::string_view key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || value->is_object()) return value;
  Problem(key, "expected an object, found ", Found(*value));
  return nullptr;
}

void ConfigReader::Adopt(absl::string_view prefix, const ConfigReader& nested) {
  for (const auto& [key, text] : nested.problems_) problems_.emplace_back(absl::StrCat(prefix, ".", key), text);
}

std::string ConfigReader::NearestUnknown(absl::string_view key) const {
  std::string nearest;
  size_t best = kNearEdits + 1;
  for (const auto& [name, unused] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end() || !IsNear(name, key)) continue;
    if (const size_t edits = EditDistance(name, key); edits < best) {
      best = edits;
      nearest = Excerpt(name);
    }
  }
  return nearest;
}

void ConfigReader::CheckSpelling() {
  for (const auto& [name, unused] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    for (const std::string& key : known_) {
      if (object_.contains(key) || !IsNear(name, key)) continue;
      if (AllGood({key})) Problem(Excerpt(name), "unknown key; did you mean \"", key, "\"?");
      break;
    }
  }
}

absl::Status ConfigReader::Finish() const {
  if (problems_.empty()) return absl::OkStatus();
  std::vector<std::string> lines;
  for (const auto& [key, text] : problems_) lines.push_back(absl::StrCat(file_, ": ", key, ": ", text));
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

}  // namespace switchyard::model
