// Routing traces that are read from files or recorded by having a server route documents; shared by `switchyard trace`
// and `switchyard profile`.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "clients/cli/command.h"
#include "clients/cli/request_flags.h"
#include "scheduler/popularity/trace/routing_trace.h"

namespace switchyard::cli {

struct RecordFlags {
  ServerFlags server;
  RequestFlags<v1::GenerateRequest> request;
  std::string input;   // file of documents, - = standard input; empty: the flags describe one document
  std::string output;  // the trace, written anew
  std::string label;
  int window = 0;
  int concurrency = 16;
};

// Adds flags for all values but `output`.  `input`: the name of the flag for the file.
void AddDocumentFlags(absl::string_view input, RecordFlags* values, FlagSet* flags);

// Sends the documents and writes their routing to the trace (scheduler/base/io/trace_bytes.h), in their order.  Returns
// the exit code; reports errors of single documents itself.
absl::StatusOr<int> RecordTrace(Console& console, const RecordFlags& flags);

// Reads the trace in a file.  A last sequence that is cut off is left out with a warning.  BadInput names the file.
absl::StatusOr<popularity::RoutingTrace> ReadTrace(Console& console, const std::string& path);

}  // namespace switchyard::cli
