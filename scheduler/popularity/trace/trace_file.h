// A routing trace as bytes: the file that `switchyard trace record` writes, and that profiles, the simulator and the
// benchmarks read.
//
// scheduler/base/io/trace_bytes.h describes the format byte by byte.  Bytes in, a trace out: knows no files.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/popularity/trace/routing_trace.h"

namespace switchyard::popularity {

// Errors are InvalidArgument and name the sequence (from 0), the byte, what was wanted and what was there.  Nothing is
// allocated that the bytes do not back, whatever counts they claim.
absl::StatusOr<RoutingTrace> ParseTrace(absl::string_view bytes);
// The same of a file whose writer was interrupted: what comes before a last sequence that is cut off, if anything does.
// *torn says what is missing; OK = nothing is.
absl::StatusOr<RoutingTrace> ParseTrace(absl::string_view bytes, absl::Status* torn);

}  // namespace switchyard::popularity
