#include "workers/checkpoint/quantized/quantization_fields.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/quote.h"

namespace switchyard::checkpoint {
namespace {

constexpr int64_t kMaxBlock = 1 << 20;

std::string FoundText(const nlohmann::json& value) { return Excerpt(JsonText(value)); }

}  // namespace

const nlohmann::json* QuantizationFields::Find(absl::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::string QuantizationFields::FirstOf(absl::Span<const char* const> keys) const {
  for (const char* key : keys) {
    if (Find(key) != nullptr) return key;
  }
  return keys.front();
}

int64_t QuantizationFields::Int(absl::string_view key, std::optional<int64_t> default_value, int64_t min, int64_t max,
                                absl::string_view understood) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    if (!default_value.has_value()) Problem(key, absl::StrCat("missing; understood: ", understood));
    return default_value.value_or(min);
  }
  if (const std::optional<int64_t> number = IntegerIn(*value, min, max)) return *number;
  Problem(key, absl::StrCat("found ", FoundText(*value), "; understood: ", understood));
  return default_value.value_or(min);
}

bool QuantizationFields::Bool(absl::string_view key, bool default_value) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return default_value;
  if (value->is_boolean()) return value->get<bool>();
  Problem(key, absl::StrCat("found ", FoundText(*value), "; understood: true, false"));
  return default_value;
}

std::string QuantizationFields::OneOf(absl::string_view key, absl::string_view default_value,
                                      absl::Span<const char* const> known) {
  const nlohmann::json* value = Find(key);
  const std::string understood = absl::StrJoin(known, ", ");
  if (value == nullptr) {
    if (default_value.empty()) Problem(key, absl::StrCat("missing; understood: ", understood));
    return std::string(default_value);
  }
  const std::string name = value->is_string() ? absl::AsciiStrToLower(value->get<std::string>()) : "";
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  Problem(key, absl::StrCat("found ", FoundText(*value), "; understood: ", understood));
  return std::string(default_value);
}

std::vector<std::string> QuantizationFields::Strings(absl::string_view key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return {};
  const auto is_string = [](const nlohmann::json& item) { return item.is_string(); };
  if (value->is_array() && std::all_of(value->begin(), value->end(), is_string)) {
    return value->get<std::vector<std::string>>();
  }
  Problem(key, absl::StrCat("found ", FoundText(*value), "; understood: a list of strings"));
  return {};
}

std::optional<std::pair<int64_t, int64_t>> QuantizationFields::Pair(absl::string_view key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  std::optional<int64_t> first, second;
  if (value->is_array() && value->size() == 2) {
    first = IntegerIn((*value)[0], 1, kMaxBlock);
    second = IntegerIn((*value)[1], 1, kMaxBlock);
  } else if (value->is_string()) {
    const std::vector<std::string> parts = absl::StrSplit(value->get<std::string>(), 'x');
    int64_t sizes[2] = {0, 0};
    if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &sizes[0]) && absl::SimpleAtoi(parts[1], &sizes[1])) {
      first = IntegerIn(nlohmann::json(sizes[0]), 1, kMaxBlock);
      second = IntegerIn(nlohmann::json(sizes[1]), 1, kMaxBlock);
    }
  }
  if (first.has_value() && second.has_value()) return std::make_pair(*first, *second);
  Problem(key, absl::StrCat("found ", FoundText(*value), "; understood: two sizes from 1 to ", kMaxBlock,
                            ", as [128, 128]"));
  return std::nullopt;
}

void QuantizationFields::Problem(absl::string_view key, absl::string_view text) {
  problems_->push_back(absl::StrCat(NameOf(key), ": ", text));
}

std::string QuantizationFields::NameOf(absl::string_view key) const { return absl::StrCat(name_, ".", Excerpt(key)); }

}  // namespace switchyard::checkpoint
