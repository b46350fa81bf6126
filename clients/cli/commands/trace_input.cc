#include "clients/cli/commands/trace_input.h"

#include "absl/strings/str_cat.h"
#include "clients/cli/whole_file.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/popularity/trace/trace_file.h"

namespace switchyard::cli {

absl::StatusOr<popularity::RoutingTrace> ReadTrace(Console& console, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(path));
  absl::Status torn;
  absl::StatusOr<popularity::RoutingTrace> trace = popularity::ParseTrace(bytes, &torn);
  if (!trace.ok()) return RefuseFile(path, trace.status().message());
  if (!torn.ok()) {
    console.err << "[" << path << ": " << torn.message() << "; taking the " << trace->sequences.size()
                << " sequences before it]" << std::endl;
  }
  return trace;
}

absl::StatusOr<popularity::ProfileBundle> ReadBundle(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(path));
  absl::StatusOr<popularity::ProfileBundle> bundle = popularity::ProfileBundle::Parse(bytes);
  return bundle.ok() ? std::move(bundle) : RefuseFile(path, bundle.status().message());
}

}  // namespace switchyard::cli
