// The one reader of JSON, for files and messages that we do not trust: one value and nothing behind it, valid UTF-8, no
// NaN or Infinity, and within limits, which stop it before the memory is spent.  Never recurses, never throws.
// Thread-safe (pure).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace switchyard {

inline constexpr int64_t kNoJsonLimit = std::numeric_limits<int64_t>::max();

struct JsonLimits {
  int max_depth = 8;                // containers inside one another
  int64_t max_values = 1'000'000;   // scalars and containers in all
  int64_t max_keys = kNoJsonLimit;  // members of all objects; to read them takes time in proportion to their number
  int64_t max_key_bytes = 1024;
  bool lenient = false;  // takes a byte order mark, and of several members of one name the last
};

// The limits of HuggingFace's readers and of our API: keys and values of any number and length, leniently.
constexpr JsonLimits LenientJson(int max_depth, int64_t max_keys = kNoJsonLimit) {
  return {max_depth, kNoJsonLimit, max_keys, kNoJsonLimit, true};
}

// A fault of a text.
struct JsonFault {
  enum class Kind : uint8_t { kText, kDepth, kKeys, kValues, kKeyBytes, kDuplicateKey };

  Kind kind = Kind::kText;  // kText: it is no JSON
  std::string reason;       // "syntax error at byte 7 near "x"", "nested 9 deep, limit 8", "duplicate key "a""
  std::string detail = {};  // of kText: the same with line, column and what would be right
  int depth = 0;            // of the whole text, beside kDepth and kKeys
  int64_t keys = 0;         // likewise
};

// Sets *value, or returns what is wrong.  For nlohmann::json and nlohmann::ordered_json.
template <class Json>
std::optional<JsonFault> ReadJson(absl::string_view text, const JsonLimits& limits, Json* value);

// Errors (InvalidArgument): "<what>: <reason> at byte K"; of a duplicate or oversized key the key (cut to 64 bytes).
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view what, absl::string_view text,
                                               const JsonLimits& limits);

// An object.  Errors (InvalidArgument): "<what>: not a JSON object", "<what>: nested 9 deep, limit 8".
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view what, absl::string_view text,
                                               const JsonLimits& limits);

}  // namespace switchyard
