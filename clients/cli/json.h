// The JSON of the CLI: values whose keys keep their order, printed as valid UTF-8 whatever came in, and parsed by
// scheduler/base/text/strict_json.h within the CLI's limits.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cli/json_fwd.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/text/json_value.h"

namespace switchyard::cli {

// One line.  Bytes that are not UTF-8 become U+FFFD.
inline std::string Dump(const Json& value) { return JsonText(value); }

// Containers inside one another.  Servers accept 64 within a field of a request.
inline constexpr int kMaxJsonDepth = 128;

// InvalidArgument says what is wrong and at which byte; also for text that is nested deeper than kMaxJsonDepth, since
// walking and printing recurse.
absl::StatusOr<Json> ParseJson(absl::string_view text);

}  // namespace switchyard::cli
