#include "scheduler/base/gguf/gguf_metadata.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/text/quote.h"

namespace switchyard {
namespace {

struct ValueTypeSpec {
  const char* name;
  int64_t bytes;
};
constexpr ValueTypeSpec kValueTypes[kNumGgufValueTypes] = {
    {"uint8", 1}, {"int8", 1},   {"uint16", 2}, {"int16", 2},  {"uint32", 4}, {"int32", 4},   {"float32", 4},
    {"bool", 1},  {"string", 0}, {"array", 0},  {"uint64", 8}, {"int64", 8},  {"float64", 8},
};

const ValueTypeSpec& SpecOf(GgufValueType type) { return kValueTypes[static_cast<uint32_t>(type)]; }

template <class Value>
Value LoadAt(absl::string_view bytes, int64_t i) {
  Value value;
  std::memcpy(&value, bytes.data() + i * static_cast<int64_t>(sizeof(Value)), sizeof(Value));
  return value;
}

double ShortestDouble(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text) - 1, value).ptr;
  *end = '\0';
  return std::strtod(text, nullptr);
}

template <class Value>
absl::StatusOr<Value> ValueOr(absl::string_view key, const GgufValue* found, const std::optional<Value>& value,
                              const std::optional<Value>& fallback, absl::string_view expected) {
  if (found == nullptr && fallback.has_value()) return *fallback;
  if (found == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("key \"", Excerpt(key), "\": is missing, expected ", expected));
  }
  if (value.has_value()) return *value;
  return absl::InvalidArgumentError(
      absl::StrCat("key \"", Excerpt(key), "\": expected ", expected, ", found ", found->Description()));
}

}  // namespace

int64_t GgufScalarBytes(GgufValueType type) { return SpecOf(type).bytes; }

const char* GgufValueTypeName(GgufValueType type) { return SpecOf(type).name; }

std::string GgufValue::Description() const {
  if (!is_array_) return SpecOf(type_).name;
  return absl::StrCat("array of ", size_, " ", SpecOf(type_).name, size_ == 1 ? "" : "s");
}

std::optional<int64_t> GgufValue::IntAt(int64_t i) const {
  switch (type_) {
    case GgufValueType::kUint8:
      return LoadAt<uint8_t>(bytes_, i);
    case GgufValueType::kInt8:
      return LoadAt<int8_t>(bytes_, i);
    case GgufValueType::kUint16:
      return LoadAt<uint16_t>(bytes_, i);
    case GgufValueType::kInt16:
      return LoadAt<int16_t>(bytes_, i);
    case GgufValueType::kUint32:
      return LoadAt<uint32_t>(bytes_, i);
    case GgufValueType::kInt32:
      return LoadAt<int32_t>(bytes_, i);
    case GgufValueType::kInt64:
      return LoadAt<int64_t>(bytes_, i);
    case GgufValueType::kUint64: {
      const auto value = LoadAt<uint64_t>(bytes_, i);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufValue::NumberAt(int64_t i) const {
  if (type_ == GgufValueType::kFloat32) return ShortestDouble(LoadAt<float>(bytes_, i));
  if (type_ == GgufValueType::kFloat64) return LoadAt<double>(bytes_, i);
  if (type_ == GgufValueType::kUint64) return static_cast<double>(LoadAt<uint64_t>(bytes_, i));
  const std::optional<int64_t> value = IntAt(i);
  if (!value.has_value()) return std::nullopt;
  return static_cast<double>(*value);
}

std::optional<int64_t> GgufValue::Int() const { return is_array_ ? std::nullopt : IntAt(0); }

std::optional<double> GgufValue::Number() const { return is_array_ ? std::nullopt : NumberAt(0); }

std::optional<bool> GgufValue::Bool() const {
  if (is_array_ || type_ != GgufValueType::kBool) return std::nullopt;
  return bytes_[0] != 0;
}

std::optional<absl::string_view> GgufValue::String() const {
  if (is_array_ || type_ != GgufValueType::kString) return std::nullopt;
  return bytes_.substr(8);
}

std::optional<std::vector<int64_t>> GgufValue::Ints() const {
  if (!is_array_) return std::nullopt;
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) {
    const std::optional<int64_t> value = IntAt(i);
    if (!value.has_value()) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

std::optional<std::vector<double>> GgufValue::Numbers() const {
  if (!is_array_) return std::nullopt;
  std::vector<double> values;
  values.reserve(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) {
    const std::optional<double> value = NumberAt(i);
    if (!value.has_value()) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

std::optional<std::vector<bool>> GgufValue::Bools() const {
  if (!is_array_ || type_ != GgufValueType::kBool) return std::nullopt;
  std::vector<bool> values;
  for (const char byte : bytes_) values.push_back(byte != 0);
  return values;
}

std::optional<std::vector<absl::string_view>> GgufValue::Strings() const {
  if (!is_array_ || type_ != GgufValueType::kString) return std::nullopt;
  std::vector<absl::string_view> values;
  values.reserve(static_cast<size_t>(size_));
  absl::string_view rest = bytes_;
  for (int64_t i = 0; i < size_; ++i) {
    const auto length = static_cast<size_t>(LoadAt<uint64_t>(rest, 0));
    values.push_back(rest.substr(8, length));
    rest.remove_prefix(8 + length);
  }
  return values;
}

GgufMetadata::GgufMetadata(std::vector<std::pair<std::string, GgufValue>> entries) : entries_(std::move(entries)) {
  for (size_t i = 0; i < entries_.size(); ++i) index_[entries_[i].first] = i;
}

const GgufValue* GgufMetadata::Find(absl::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

absl::StatusOr<int64_t> GgufMetadata::Int(absl::string_view key, std::optional<int64_t> fallback) const {
  const GgufValue* const found = Find(key);
  return ValueOr(key, found, found == nullptr ? std::nullopt : found->Int(), fallback, "an integer");
}

absl::StatusOr<double> GgufMetadata::Number(absl::string_view key, std::optional<double> fallback) const {
  const GgufValue* const found = Find(key);
  return ValueOr(key, found, found == nullptr ? std::nullopt : found->Number(), fallback, "a number");
}

absl::StatusOr<bool> GgufMetadata::Bool(absl::string_view key, std::optional<bool> fallback) const {
  const GgufValue* const found = Find(key);
  return ValueOr(key, found, found == nullptr ? std::nullopt : found->Bool(), fallback, "a bool");
}

absl::StatusOr<std::string> GgufMetadata::String(absl::string_view key, std::optional<std::string> fallback) const {
  const GgufValue* const found = Find(key);
  std::optional<std::string> value;
  if (found != nullptr && found->String().has_value()) value = std::string(*found->String());
  return ValueOr(key, found, value, fallback, "a string");
}

}  // namespace switchyard
