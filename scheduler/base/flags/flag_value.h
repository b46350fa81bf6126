// Values of flags as text.  They are written as Abseil's flags have them: 8080, 0x1f, 0.5, true, yes, off, 90s, 1h30m.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace switchyard {

// False: `text` is no such value; *error may say why.
bool ParseValue(absl::string_view text, bool* out, std::string* error);
bool ParseValue(absl::string_view text, int32_t* out, std::string* error);
bool ParseValue(absl::string_view text, int64_t* out, std::string* error);
bool ParseValue(absl::string_view text, uint64_t* out, std::string* error);
bool ParseValue(absl::string_view text, double* out, std::string* error);
bool ParseValue(absl::string_view text, absl::Duration* out, std::string* error);
bool ParseValue(absl::string_view text, std::string* out, std::string* error);
template <class T>
bool ParseValue(absl::string_view text, std::optional<T>* out, std::string* error) {
  return ParseValue(text, &out->emplace(), error);
}
// Each value that is given comes behind those before it.
template <class T>
bool ParseValue(absl::string_view text, std::vector<T>* out, std::string* error) {
  T one = {};
  if (!ParseValue(text, &one, error)) return false;
  out->push_back(std::move(one));
  return true;
}

// What ParseValue reads again as the same value.
std::string ValueText(bool value);
std::string ValueText(int32_t value);
std::string ValueText(int64_t value);
std::string ValueText(uint64_t value);
std::string ValueText(double value);
std::string ValueText(absl::Duration value);
std::string ValueText(const std::string& value);
// Of what has no single text: as if nothing was given.
template <class T>
std::string ValueText(const std::optional<T>&) {
  return "";
}
template <class T>
std::string ValueText(const std::vector<T>&) {
  return "";
}

}  // namespace switchyard
