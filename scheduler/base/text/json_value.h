// Typed reads of parsed JSON.  Thread-safe (pure).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"

namespace switchyard {

// An integer within [min, max].  4.0 is none: in a file it is a float by mistake.
template <class Json>
std::optional<int64_t> IntegerIn(const Json& value, int64_t min, int64_t max) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.template get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return std::nullopt;
  }
  const auto number = value.template get<int64_t>();
  if (number < min || number > max) return std::nullopt;
  return number;
}

// Reads an object's member as a count, from 0 on.
template <class Json>
std::optional<int64_t> CountAt(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member == object.end() ? std::nullopt : IntegerIn(*member, 0, INT64_MAX);
}

// On one line.  Bytes that are not UTF-8 become U+FFFD.
template <class Json>
std::string JsonText(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace switchyard
