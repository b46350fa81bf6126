// Typed reads from one JSON object, collecting what is wrong instead of stopping at the first.
//
// Each getter returns its default when the key is absent or null, notes the problem when the value has the wrong type
// or lies outside its range, and remembers the key as known.  CheckSpelling reports unknown keys only where they look
// like a misspelling of a known one that is absent: configs carry many keys that do not concern inference.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace switchyard::model {

struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};

class ConfigReader {
 public:
  // object: borrowed; `file` names it in messages.  REQUIRES: object is an object.
  ConfigReader(const nlohmann::json& object, std::string file) : object_(object), file_(std::move(file)) {}

  // True if the key is there and not null; notes it as known.
  bool Has(absl::string_view key);
  // Notes keys as known that nobody reads.
  void Know(absl::Span<const char* const> keys);
  // The first of `keys` that is present (older and newer spellings); all become known.
  std::string FirstOf(std::initializer_list<const char*> keys);

  int64_t Int(absl::string_view key, std::optional<int64_t> default_value, IntRange range);
  // Finite numbers only; min <= value <= max, or min < value if `open`.
  double Number(absl::string_view key, std::optional<double> default_value, double min, double max, bool open = false);
  bool Bool(absl::string_view key, bool default_value);
  std::string String(absl::string_view key, absl::string_view default_value);
  std::vector<int64_t> Ints(absl::string_view key, IntRange range);  // an int or a list; absent = empty
  std::vector<double> Numbers(absl::string_view key);                // absent = empty
  std::vector<std::string> Strings(absl::string_view key);           // absent = empty
  const nlohmann::json* Object(absl::string_view key);               // nullptr if absent

  // False if one of the keys has a problem already.  Ask before comparing values: a getter that noted a problem has
  // returned some value that the file does not have.
  bool AllGood(absl::Span<const absl::string_view> keys) const;
  bool AllGood(std::initializer_list<absl::string_view> keys) const {
    return AllGood(absl::MakeConstSpan(keys.begin(), keys.size()));
  }
  // Adds a problem: "<key>: <text>".
  void Problem(absl::string_view key, absl::string_view text);
  // Takes over the problems of a reader of a nested object, whose key is `prefix`.
  void Adopt(absl::string_view prefix, const ConfigReader& nested);
  // Adds a problem for each unknown key that is nearly a known, absent one.  Call when every key was read.
  void CheckSpelling();
  bool ok() const { return problems_.empty(); }

  // OK, or InvalidArgument with every problem on a line of its own: "<file>: <key>: <text>".
  absl::Status Finish() const;

 private:
  const nlohmann::json* Find(absl::string_view key);
  void Missing(absl::string_view key);
  std::string NearestUnknown(absl::string_view key) const;

  const nlohmann::json& object_;
  std::string file_;
  std::vector<std::string> known_;
  std::vector<std::pair<std::string, std::string>> problems_;  // key, text
};

}  // namespace switchyard::model
