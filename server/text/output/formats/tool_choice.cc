#include "server/text/output/formats/tool_choice.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/text/quote.h"
#include "server/text/output/calls/call_sink.h"

namespace switchyard::text {

absl::StatusOr<std::string> ForcedCall(const ToolFormat& format, absl::string_view function) {
  if (function.empty()) return std::string(format.force_before_name);
  const bool good = function.size() <= kMaxNameBytes && std::all_of(function.begin(), function.end(), [](char byte) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(byte)) ||
                             absl::string_view("_-./:").find(byte) != absl::string_view::npos;
                    });
  if (!good) {
    return absl::InvalidArgumentError(absl::StrCat("tool_choice: a function's name is 1 to ", kMaxNameBytes,
                                                   " letters, digits, _ - . / or :, got ", Quote(function)));
  }
  return absl::StrCat(format.force_before_name, function, format.force_behind_name);
}

}  // namespace switchyard::text
