// Files of routing traces and profiles.  Errors are BadInput with the file and what is wrong.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cli/command.h"
#include "scheduler/popularity/profile_bundle.h"
#include "scheduler/popularity/trace/routing_trace.h"

namespace switchyard::cli {

// Without a last sequence that is cut off, and says so.
absl::StatusOr<popularity::RoutingTrace> ReadTrace(Console& console, const std::string& path);
absl::StatusOr<popularity::ProfileBundle> ReadBundle(const std::string& path);

}  // namespace switchyard::cli
