// Typed reads from one JSON object that collect all problems.
//
// Each getter returns its default when the key is absent or null, notes a problem when the value has the wrong type or
// lies outside its range, and remembers the key as known.  CheckSpelling reports unknown keys only where they look like
// a misspelling of a known, absent one, as configs have many keys that do not concern inference.  Thread-compatible.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "workers/tensor/dtype.h"

namespace switchyard::model {

inline constexpr char kConfigFile[] = "config.json";
// The names of dtypes in a config.json.
inline constexpr std::pair<absl::string_view, DType> kConfigDTypes[] = {
    {"bfloat16", DType::kBf16}, {"float16", DType::kF16}, {"float32", DType::kF32}, {"float64", DType::kF64}};

// InvalidArgument that names the file: not a JSON object, or deeper than kMaxConfigDepth.
absl::StatusOr<nlohmann::json> ParseConfigObject(absl::string_view file, absl::string_view text);

struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};

class ConfigReader {
 public:
  // object: borrowed; `file` names it in messages.  REQUIRES: object is an object.
  ConfigReader(const nlohmann::json& object, std::string file) : object_(object), file_(std::move(file)) {}

  // Whether the key is there and not null; notes it as known.
  bool Has(absl::string_view key) { return Find(key) != nullptr; }
  // Notes keys as known that are not read.
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
  // returned a value that is not the file's.
  bool AllGood(std::initializer_list<absl::string_view> keys) const;
  // Adds a problem: "<key>: <parts, joined>".
  template <class... Parts>
  void Problem(absl::string_view key, const Parts&... parts) {
    problems_.emplace_back(key, absl::StrCat(parts...));
  }
  // Adds the problems of a reader of a nested object, whose key is `prefix`.
  void Adopt(absl::string_view prefix, const ConfigReader& nested);
  // Adds a problem for each unknown key that is nearly a known, absent one.  Call after every key was read.
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
