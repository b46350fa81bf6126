#include "clients/cli/field.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "clients/cli/json.h"
#include "proto/support/errors.h"
#include "scheduler/base/text/nearest_name.h"
#include "scheduler/base/text/strict_json.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::cli {
namespace {

constexpr size_t kMaxShown = 64;  // bytes of a wrong value in a message

absl::Status WrongType(const char* expected, const Json& value) {
  const std::string text = Dump(value);
  return absl::InvalidArgumentError(
      absl::StrCat("must be ", expected, ", is ", text.size() > kMaxShown ? Quote(text) : text));
}

absl::StatusOr<Json> NumberFlag(const std::string& text) {
  absl::StatusOr<Json> value = ParseJson(text);
  if (value.ok() && value->is_number()) return value;
  return absl::InvalidArgumentError(absl::StrCat("must be a number, is ", Quote(text)));
}

absl::StatusOr<Json> BoolFlag(const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  if (lower == "true" || lower == "1" || lower == "yes" || lower == "on") return Json(true);
  if (lower == "false" || lower == "0" || lower == "no" || lower == "off") return Json(false);
  return absl::InvalidArgumentError(absl::StrCat("must be true or false, is ", Quote(text)));
}

absl::StatusOr<Json> IdsFlag(const std::string& text) {
  Json ids = Json::array();
  absl::string_view list = absl::StripAsciiWhitespace(text);
  if (!list.empty() && list.front() == '[' && list.back() == ']') list = list.substr(1, list.size() - 2);
  for (absl::string_view part : absl::StrSplit(list, absl::ByAnyChar(", "), absl::SkipWhitespace())) {
    int64_t id = 0;
    if (!absl::SimpleAtoi(part, &id))
      return absl::InvalidArgumentError(absl::StrCat("must be token ids such as 5,9,11; has ", Quote(part)));
    ids.push_back(id);
  }
  return ids;
}

// Whether the value is an integer such as 3.0 (some programs write 3 so), small enough to be exact.
bool IsWhole(double value) { return std::abs(value) <= 1e15 && value == std::trunc(value); }

template <class Int>
absl::Status ReadInteger(const char* expected, const Json& value, Int* out) {
  if (value.is_number_float() && IsWhole(value.get<double>()))
    return ReadInteger(expected, Json(std::llround(value.get<double>())), out);
  if (!value.is_number_integer()) return WrongType("an integer", value);
  const std::optional<int64_t> number =
      IntegerIn(value, std::numeric_limits<Int>::min(), std::numeric_limits<Int>::max());
  if (!number) return WrongType(expected, value);
  *out = static_cast<Int>(*number);
  return absl::OkStatus();
}

template <class Item>
absl::Status ReadList(const char* expected, const Json& value, std::vector<Item>* out) {
  if (!value.is_array()) return WrongType(expected, value);
  out->clear();
  for (size_t i = 0; i < value.size(); ++i) {
    if (absl::Status status = Read(value[i], &out->emplace_back()); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("item ", i, " ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text) {
  Json value;
  const std::optional<JsonFault> fault = ReadJson(text, LenientJson(kMaxJsonDepth), &value);
  if (!fault) return value;
  return absl::InvalidArgumentError(fault->kind == JsonFault::Kind::kText
                                        ? absl::StrCat("not valid JSON: ", fault->detail)
                                        : absl::StrCat("JSON is ", fault->reason));
}

absl::StatusOr<Json> FlagToJson(FieldKind kind, const std::vector<std::string>& values) {
  if (kind == FieldKind::kTexts) return Json(values);
  if (values.size() != 1)
    return absl::InvalidArgumentError(absl::StrCat("given ", values.size(), " times; once is enough"));
  switch (kind) {
    case FieldKind::kNumber:
      return NumberFlag(values[0]);
    case FieldKind::kBool:
      return BoolFlag(values[0]);
    case FieldKind::kIds:
      return IdsFlag(values[0]);
    case FieldKind::kJson:
      return ParseJson(values[0]);
    default:
      return Json(values[0]);
  }
}

absl::Status Read(const Json& value, bool* out) {
  if (!value.is_boolean()) return WrongType("true or false", value);
  *out = value.get<bool>();
  return absl::OkStatus();
}

absl::Status Read(const Json& value, int32_t* out) { return ReadInteger("an integer of 32 bits", value, out); }
absl::Status Read(const Json& value, int64_t* out) { return ReadInteger("an integer of 64 bits", value, out); }

absl::Status Read(const Json& value, uint64_t* out) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0))
    return WrongType("an integer from 0 to 2^64 - 1", value);
  *out = value.get<uint64_t>();
  return absl::OkStatus();
}

absl::Status Read(const Json& value, double* out) {
  if (!value.is_number()) return WrongType("a number", value);
  *out = value.get<double>();
  return absl::OkStatus();
}

absl::Status Read(const Json& value, std::string* out) {
  if (!value.is_string()) return WrongType("a text", value);
  *out = value.get<std::string>();
  const size_t bad = FindInvalidUtf8(*out);
  if (bad == absl::string_view::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("is not valid UTF-8 at byte ", bad));
}

absl::Status Read(const Json& value, std::vector<int32_t>* out) { return ReadList("a list of integers", value, out); }
absl::Status Read(const Json& value, std::vector<std::string>* out) {
  if (!value.is_string()) return ReadList("a list of texts", value, out);
  out->assign(1, "");  // a single text counts as a list of one
  return Read(value, &out->front());
}

std::string SuggestName(absl::string_view wrong, const std::vector<std::string>& names) {
  if (names.empty()) return "there are none";
  wrong = wrong.substr(0, kMaxShown);
  const std::string nearest = NearestName(wrong, names);
  // (A name of a letter or two is as few edits away from others that it has nothing in common with.)
  if (!nearest.empty() && EditDistance(wrong, nearest) < wrong.size())
    return absl::StrCat("did you mean \"", nearest, "\"?");
  return absl::StrCat("known are: ", absl::StrJoin(names, ", "));
}

}  // namespace switchyard::cli
