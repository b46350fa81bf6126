// JSON as the CLI reads and writes it: keys keep their order, output is valid UTF-8 whatever came in.
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

// What servers take within a field of a request is nested 64 deep.
inline constexpr int kMaxJsonDepth = 128;

// InvalidArgument with what is wrong and at which byte; also where it is nested deeper than kMaxJsonDepth, for whoever
// walks or prints it recurses.
absl::StatusOr<Json> ParseJson(absl::string_view text);

}  // namespace switchyard::cli
