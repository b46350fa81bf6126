// Typed reads of the fields of a quantization_config that collect all problems; ReadQuantizationConfig alone uses it.
// Thread-compatible.  A getter that notes a problem returns its default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace switchyard::checkpoint {

class QuantizationFields {
 public:
  // Borrows both; `name` is that of the object in messages.
  QuantizationFields(const nlohmann::json& object, std::string name, std::vector<std::string>* problems)
      : object_(object), name_(std::move(name)), problems_(problems) {}

  // Null: the object lacks the key, or its value is null.
  const nlohmann::json* Find(absl::string_view key) const;
  // The first of the keys that is present, else the first.
  std::string FirstOf(absl::Span<const char* const> keys) const;
  // An integer within [min, max], which `understood` names.
  int64_t Int(absl::string_view key, std::optional<int64_t> default_value, int64_t min, int64_t max,
              absl::string_view understood);
  bool Bool(absl::string_view key, bool default_value);
  // One of `known`, in any case of letters, in lower case.
  std::string OneOf(absl::string_view key, absl::string_view default_value, absl::Span<const char* const> known);
  std::vector<std::string> Strings(absl::string_view key);
  // A pair of sizes, as a list or as "128x128"; nothing if it is absent.
  std::optional<std::pair<int64_t, int64_t>> Pair(absl::string_view key);

  // Adds "<name>.<key>: <text>".
  void Problem(absl::string_view key, absl::string_view text);
  std::string NameOf(absl::string_view key) const;

 private:
  const nlohmann::json& object_;
  const std::string name_;
  std::vector<std::string>* const problems_;
};

}  // namespace switchyard::checkpoint
