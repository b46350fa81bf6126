#include "clients/cli/commands/trace_input.h"

#include "absl/strings/str_cat.h"
#include "clients/cli/whole_file.h"
#include "scheduler/popularity/trace/trace_file.h"

namespace switchyard {
absl::StatusOr<RoutingTrace> ReadTrace(Console& console, const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadWhole(path);
  if (!bytes.ok()) return bytes.status();
  absl::Status torn;
  absl::StatusOr<RoutingTrace> trace = ParseTrace(*bytes, &torn);
  if (!trace.ok()) return RefuseFile(path, trace.status().message());
  if (!torn.ok()) {
    console.err << "[" << path << ": " << torn.message() << "; taking the " << trace->sequences.size()
                << " sequences before it]" << std::endl;
  }
  return trace;
}

absl::StatusOr<ProfileBundle> ReadBundle(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadWhole(path);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<ProfileBundle> bundle = ProfileBundle::Parse(*bytes);
  return bundle.ok() ? std::move(bundle) : RefuseFile(path, bundle.status().message());
}

}  // namespace switchyard
