// JSON from files that we do not trust, parsed strictly: one value and nothing behind it, no byte order mark, valid
// UTF-8, no NaN or Infinity, no duplicate keys, bounded depth and number of values.  Never recurses, never throws.
// Thread-safe (pure).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace switchyard {

struct JsonLimits {
  int max_depth = 8;               // containers inside one another
  int64_t max_values = 1'000'000;  // scalars and containers in all
  int64_t max_key_bytes = 1024;
};

// Errors (InvalidArgument): "<what>: <reason> at byte K"; of a duplicate or oversized key the key (cut to 64 bytes).
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view what, absl::string_view text,
                                               const JsonLimits& limits);

// At most 64 bytes of `text` with everything but printable ASCII escaped: for error messages.
std::string Excerpt(absl::string_view text);

}  // namespace switchyard
