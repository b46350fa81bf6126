#include "scheduler/jobs/comm_spec.h"

#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace switchyard::jobs {
namespace {

constexpr absl::string_view kNames[] = {"fair",      "fixed",      "ar_last", "priority", "priority_ticketed",
                                        "partition", "pipelining", "full",    "preempt"};
static_assert(std::size(kNames) == kNumCommModes);

}  // namespace

absl::string_view CommModeName(CommMode mode) { return kNames[static_cast<int>(mode)]; }

absl::StatusOr<CommMode> ParseCommMode(absl::string_view name) {
  for (int i = 0; i < kNumCommModes; ++i) {
    if (kNames[i] == name) return static_cast<CommMode>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(name.substr(0, 64)),
                                                 "\" is no mode; must be one of ", absl::StrJoin(kNames, ", ")));
}

}  // namespace switchyard::jobs
