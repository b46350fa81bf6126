#include "server/http/json_fields.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"

namespace switchyard::server {
namespace {

constexpr int kBodyDepth = 64;
constexpr int64_t kBodyKeys = 100'000;  // of all objects, also of one
constexpr size_t kShownBytes = 60;

std::string Shown(const JsonFields::Json& value) {
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  const std::string text = JsonText(value);
  return text.size() <= kShownBytes ? text : absl::StrCat(text.substr(0, kShownBytes), "...");
}

}  // namespace

const JsonFields::Json* JsonFields::Find(const char* key) const {
  const auto member = object_.find(key);
  return member == object_.end() || member->is_null() ? nullptr : &*member;
}

std::string JsonFields::Name(absl::string_view key) const { return absl::StrCat(path_, key); }

absl::Status JsonFields::Wrong(absl::string_view key, absl::string_view wanted, const Json& actual) const {
  return rpc::BadField(Name(key), absl::StrCat("must be ", wanted, ", is ", Shown(actual)), wanted, Shown(actual));
}

absl::Status JsonFields::OutOfRange(const char* key, int64_t min, int64_t max, int64_t actual) const {
  const std::string limit = absl::StrCat("[", min, ", ", max, "]");
  return rpc::BadField(Name(key), absl::StrCat("must be within ", limit, ", is ", actual), limit, absl::StrCat(actual));
}

absl::Status JsonFields::Object(const char* key, const Json** value) const {
  *value = Find(key);
  return *value == nullptr || (*value)->is_object() ? absl::OkStatus() : Wrong(key, "an object", **value);
}

absl::Status JsonFields::Array(const char* key, const Json** value) const {
  *value = Find(key);
  return *value == nullptr || (*value)->is_array() ? absl::OkStatus() : Wrong(key, "an array", **value);
}

std::optional<int64_t> JsonFields::WholeNumber(const Json& value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    constexpr double kMost = 9007199254740992.0;  // 2^53
    if (std::floor(number) != number || std::fabs(number) > kMost) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  return IntegerIn(value, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
}

absl::Status ParseBody(absl::string_view body, JsonFields::Json* object) {
  const auto bad = [](absl::string_view why) { return rpc::BadField("body", why, "one JSON object", ""); };
  if (body.empty()) return bad("is empty: a JSON object is needed");
  if (const std::optional<JsonFault> fault = ReadJson(body, LenientJson(kBodyDepth, kBodyKeys), object))
    return bad(fault->kind == JsonFault::Kind::kText ? absl::StrCat("is no JSON: ", fault->reason) : fault->reason);
  return object->is_object() ? absl::OkStatus() : bad("must be a JSON object");
}

}  // namespace switchyard::server
