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
#include "scheduler/base/nearest_name.h"
#include "utf8proc.h"

namespace switchyard {
namespace {

constexpr size_t kMaxShown = 64;  // bytes of a wrong value in a message

absl::Status WrongType(const char* expected, const Json& value) {
  const std::string text = Dump(value);
  return absl::InvalidArgumentError(
      absl::StrCat("must be ", expected, ", is ", text.size() > kMaxShown ? Quote(text) : text));
}

absl::StatusOr<Json> NumberFlag(const std::string& text) {
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_number()) return value;
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

// Byte offset of the first invalid sequence of UTF-8, or -1.
int64_t FindInvalidUtf8(const std::string& text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  utf8proc_ssize_t at = 0;
  while (at < size) {
    utf8proc_int32_t code_point = 0;
    const utf8proc_ssize_t length = utf8proc_iterate(bytes + at, size - at, &code_point);
    if (length < 1) return at;
    at += length;
  }
  return -1;
}

// 3.0, as some programs write 3; small enough to be exact.
bool IsWhole(double value) { return std::abs(value) <= 1e15 && value == std::trunc(value); }

// Of text that is JSON; of other text some number.
int JsonDepth(absl::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      if (c == '\\') ++i;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text) {
  // (The parser could ask at every level, but then it goes through each container once more for each of its elements.)
  if (const int depth = JsonDepth(text); depth > kMaxJsonDepth) {
    return absl::InvalidArgumentError(absl::StrCat("JSON is nested ", depth, " deep, limit ", kMaxJsonDepth));
  }
  try {  // without exceptions the parser does not say what is wrong
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ..."
    const absl::string_view what = error.what();
    const size_t bracket = what.find("] ");
    const absl::string_view message = bracket == absl::string_view::npos ? what : what.substr(bracket + 2);
    return absl::InvalidArgumentError(absl::StrCat("not valid JSON: ", message.substr(0, 200)));
  }
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

absl::Status Read(const Json& value, int32_t* out) {
  constexpr int64_t kLow = std::numeric_limits<int32_t>::min(), kHigh = std::numeric_limits<int32_t>::max();
  if (value.is_number_float() && IsWhole(value.get<double>()))
    return Read(Json(std::llround(value.get<double>())), out);
  if (!value.is_number_integer()) return WrongType("an integer", value);
  // Positive numbers are unsigned when they were parsed, signed when they were made.
  const bool huge =
      value.is_number_unsigned() ? value.get<uint64_t>() > static_cast<uint64_t>(kHigh) : value.get<int64_t>() > kHigh;
  if (huge || (!value.is_number_unsigned() && value.get<int64_t>() < kLow)) {
    return WrongType("an integer of 32 bits", value);
  }
  *out = value.get<int32_t>();
  return absl::OkStatus();
}

absl::Status Read(const Json& value, int64_t* out) {
  if (value.is_number_float() && IsWhole(value.get<double>()))
    return Read(Json(std::llround(value.get<double>())), out);
  if (!value.is_number_integer()) return WrongType("an integer", value);
  if (value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
    return WrongType("an integer of 64 bits", value);
  }
  *out = value.get<int64_t>();
  return absl::OkStatus();
}

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
  const int64_t bad = FindInvalidUtf8(*out);
  if (bad >= 0) return absl::InvalidArgumentError(absl::StrCat("is not valid UTF-8 at byte ", bad));
  return absl::OkStatus();
}

absl::Status Read(const Json& value, std::vector<int32_t>* out) {
  if (!value.is_array()) return WrongType("a list of integers", value);
  out->clear();
  for (size_t i = 0; i < value.size(); ++i) {
    int32_t item = 0;
    if (absl::Status status = Read(value[i], &item); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("item ", i, " ", status.message()));
    }
    out->push_back(item);
  }
  return absl::OkStatus();
}

absl::Status Read(const Json& value, std::vector<std::string>* out) {
  out->clear();
  if (value.is_string()) {  // one text is a list of one
    out->emplace_back();
    return Read(value, &out->back());
  }
  if (!value.is_array()) return WrongType("a list of texts", value);
  for (size_t i = 0; i < value.size(); ++i) {
    std::string item;
    if (absl::Status status = Read(value[i], &item); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("item ", i, " ", status.message()));
    }
    out->push_back(std::move(item));
  }
  return absl::OkStatus();
}

std::string SuggestName(absl::string_view wrong, const std::vector<std::string>& names) {
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& name : names) {
    const size_t distance = EditDistance(wrong.substr(0, kMaxShown), name);
    if (best == nullptr || distance < best_distance) {
      best = &name;
      best_distance = distance;
    }
  }
  if (best != nullptr && best_distance <= 3 && best_distance < wrong.size())
    return absl::StrCat("did you mean \"", *best, "\"?");
  if (best == nullptr) return "there are none";
  return absl::StrCat("known are: ", absl::StrJoin(names, ", "));
}

}  // namespace switchyard
