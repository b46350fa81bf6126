// Loads of one benchmark: closed loops of greedy streams over gRPC or over HTTP, and what a client sees of them.
//
// A client here is one thread that waits in epoll and reads bytes.  It counts the parts of answers (messages, events)
// as they come and looks into them only where an answer ends, so that it takes little of the cores that it shares with
// the server, and alike over both protocols: over gRPC it writes and reads frames of HTTP/2 itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace switchyard::bench {

enum class LoadProtocol { kGrpc, kHttp };
enum class LoadApi { kCompletions, kChat };
// Connections: one for all streams (gRPC alone), one for each stream, or a new one for each request.
enum class LoadConnections { kShared, kKept, kNew };

struct LoadKind {
  const char* name;
  LoadProtocol protocol;
  LoadApi api;
  LoadConnections connections;
};

struct LoadSize {
  int streams = 1;
  int requests = 1;  // of each stream, one after the other
  int tokens = 96;   // of an answer on average: from a half of that to one and a half
};

// What one request asks for; the same over both protocols.
struct LoadRequest {
  std::string prompt;
  int tokens = 0;
};
LoadRequest RequestOf(const LoadSize& size, int stream, int request);
// A request's bytes: the body of HTTP, or the message of gRPC.
std::string BodyOf(const LoadKind& kind, const LoadRequest& request);

// What the client saw of one load.
struct LoadResult {
  double seconds = 0;                   // from the first request to the last answer's end
  int64_t tokens = 0;                   // of all answers
  int64_t parts = 0;                    // that these came in: messages or events
  double client_cpu_seconds = 0;        // of this process
  std::vector<double> first_ms;         // from the start of a request (of its connection, if that is new)
  std::vector<double> gap_ms;           // between arrivals of one stream
  std::vector<std::string> texts = {};  // of the answers, by stream and request; empty unless they were asked for
};

// Runs a load to its end.  `keeps_texts`: reads the answers' texts, too, which costs time.  Errors: no connection, an
// answer that is not whole or not what was asked for, or nothing for `patience`.
absl::StatusOr<LoadResult> RunGrpcLoad(const std::string& address, const LoadKind& kind, const LoadSize& size,
                                       bool keeps_texts, absl::Duration patience = absl::Seconds(30));
absl::StatusOr<LoadResult> RunHttpLoad(const std::string& address, const LoadKind& kind, const LoadSize& size,
                                       bool keeps_texts, absl::Duration patience = absl::Seconds(30));

}  // namespace switchyard::bench
