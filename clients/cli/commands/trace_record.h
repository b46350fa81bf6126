// Routing traces, as files and as documents that a server routes: the part that `switchyard trace` and `switchyard
// profile` have in common.
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
  std::string input;   // file of documents, - = standard input; empty: the flags are the one document
  std::string output;  // the trace, written anew
  std::string label;
  int window = 0;
  int concurrency = 16;
};

// All of them but `output`; `input` is the name of the flag that says the file.
void AddDocumentFlags(absl::string_view input, RecordFlags* values, FlagSet* flags);

// Sends the documents and writes what they were routed to (scheduler/base/io/trace_bytes.h), in their order.
// Returns the exit code; what goes wrong with single documents it reports itself.
absl::StatusOr<int> RecordTrace(Console& console, const RecordFlags& flags);

// The trace in a file, without a last sequence that is cut off, of which it warns.  BadInput names the file.
absl::StatusOr<popularity::RoutingTrace> ReadTrace(Console& console, const std::string& path);

}  // namespace switchyard::cli
