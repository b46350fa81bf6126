#include "server/text/tokenizer/json_field.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/strict_json.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::tokenizer {
namespace {

// No limit: the readers of the parts have their own limits, and deep unread parts do no harm.
constexpr int kMaxDepth = std::numeric_limits<int>::max();

std::string Describe(const nlohmann::json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    return absl::StrCat("string ", Quote(text));
  }
  if (value->is_number() || value->is_boolean()) return absl::StrCat(value->type_name(), " ", value->dump());
  if (value->is_array()) return absl::StrCat("array of ", value->size());
  return value->type_name();
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, absl::string_view name) {
  nlohmann::json value;
  const std::optional<JsonFault> fault = ReadJson(text, LenientJson(kMaxDepth), &value);
  if (!fault) return value;
  if (fault->kind != JsonFault::Kind::kText) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", fault->reason));
  }
  return absl::InvalidArgumentError(absl::StrCat(name, ": not JSON: ", fault->detail));
}

Field Field::operator[](absl::string_view key) const {
  std::string path = path_.empty() ? std::string(key.data(), key.size()) : absl::StrCat(path_, ".", key);
  if (value_ == nullptr || !value_->is_object()) return Field(nullptr, file_, std::move(path));
  const auto found = value_->find(std::string(key.data(), key.size()));
  return Field(found == value_->end() ? nullptr : &*found, file_, std::move(path));
}

Field Field::at(size_t index) const { return Field(&(*value_)[index], file_, absl::StrCat(path_, "[", index, "]")); }

absl::Status Field::Expected(absl::string_view what) const {
  return Error(absl::StrCat("expected ", what, ", found ", Describe(value_)));
}

absl::Status Field::Error(absl::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": ", path_.empty() ? "top level" : path_, ": ", message));
}

absl::Status Field::CheckObject() const {
  return value_ != nullptr && value_->is_object() ? absl::OkStatus() : Expected("an object");
}

absl::Status Field::CheckArray() const {
  return value_ != nullptr && value_->is_array() ? absl::OkStatus() : Expected("an array");
}

absl::StatusOr<std::string> Field::String() const {
  if (value_ == nullptr || !value_->is_string()) return Expected("a string");
  return value_->get_ref<const std::string&>();
}

absl::StatusOr<std::string> Field::StringOr(absl::string_view fallback) const {
  if (!present()) return std::string(fallback.data(), fallback.size());
  return String();
}

absl::StatusOr<char32_t> Field::CharacterOr(absl::string_view fallback) const {
  ASSIGN_OR_RETURN(const std::string text, StringOr(fallback));
  size_t pos = 0;
  const char32_t c = text.empty() ? 0 : DecodeUtf8(text, &pos);
  if (text.empty() || pos != text.size()) return Expected("one character");
  return c;
}

absl::StatusOr<bool> Field::BoolOr(bool fallback) const {
  if (!present()) return fallback;
  if (!value_->is_boolean()) return Expected("true or false");
  return value_->get<bool>();
}

absl::StatusOr<int64_t> Field::Int(int64_t low, int64_t high) const {
  const std::optional<int64_t> number = value_ == nullptr ? std::nullopt : IntegerIn(*value_, low, high);
  if (!number) return Expected(absl::StrCat("an integer in [", low, ", ", high, "]"));
  return *number;
}

absl::StatusOr<int64_t> Field::IntOr(int64_t fallback, int64_t low, int64_t high) const {
  if (!present()) return fallback;
  return Int(low, high);
}

}  // namespace switchyard::tokenizer
