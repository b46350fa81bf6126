// Typed reads of the members of a JSON object that a client sent.  A member that is null counts as absent.
//
// Errors are BAD_FIELD (proto/support/errors.h) and name the member, what it must be and what it is.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace switchyard::server {

class JsonFields {
 public:
  using Json = nlohmann::ordered_json;

  // `object` is borrowed.  `path`: its place, before the names of members in errors ("messages[2].").
  explicit JsonFields(const Json& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  // The member; null if it is absent.
  const Json* Find(const char* key) const;
  std::string Name(absl::string_view key) const;
  absl::Status Wrong(absl::string_view key, absl::string_view wanted, const Json& actual) const;

  // Each calls `set` with the value of the member, if it is there.
  template <class SetFn>
  absl::Status Number(const char* key, SetFn set) const {
    const Json* const value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_number()) return Wrong(key, "a number", *value);
    set(value->get<double>());
    return absl::OkStatus();
  }
  template <class SetFn>
  absl::Status Integer(const char* key, SetFn set, int64_t min = std::numeric_limits<int32_t>::min(),
                       int64_t max = std::numeric_limits<int32_t>::max()) const {
    const Json* const value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    const std::optional<int64_t> number = WholeNumber(*value);
    if (!number.has_value()) return Wrong(key, "an integer", *value);
    if (*number < min || *number > max) return OutOfRange(key, min, max, *number);
    set(*number);
    return absl::OkStatus();
  }
  template <class SetFn>
  absl::Status Bool(const char* key, SetFn set) const {
    const Json* const value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_boolean()) return Wrong(key, "true or false", *value);
    set(value->get<bool>());
    return absl::OkStatus();
  }
  template <class SetFn>
  absl::Status String(const char* key, SetFn set) const {
    const Json* const value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_string()) return Wrong(key, "a string", *value);
    set(value->get_ref<const std::string&>());
    return absl::OkStatus();
  }
  // The object or array of that name; null if it is absent.
  absl::Status Object(const char* key, const Json** value) const;
  absl::Status Array(const char* key, const Json** value) const;

  // An integer, also one that is written as 4.0 as some clients do.
  static std::optional<int64_t> WholeNumber(const Json& value);

 private:
  absl::Status OutOfRange(const char* key, int64_t min, int64_t max, int64_t actual) const;

  const Json& object_;
  const std::string path_;
};

// Parses a request's body, which must be one JSON object.  Errors: BAD_FIELD of "body", with the byte.
absl::Status ParseBody(absl::string_view body, JsonFields::Json* object);

}  // namespace switchyard::server
