// What the clients of both protocols share: sockets in epoll, and the times of each stream.  For loads alone.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/base/io/unique_fd.h"
#include "tests/bench/http_over_grpc/load.h"

namespace switchyard::bench {

// Connects to IPV4:PORT, and switches off Nagle's algorithm, as clients do.
absl::StatusOr<UniqueFd> ConnectTo(const std::string& address);
// Sends all bytes; they are few, so that a full socket is an error.
absl::Status SendAll(int fd, absl::string_view bytes);

// Processor seconds of this process.
double OwnCpuSeconds();

// The streams of a load: what each sends next, and when what came.
class LoadStreams {
 public:
  LoadStreams(const LoadKind& kind, const LoadSize& size, bool keeps_texts);

  size_t count() const { return streams_.size(); }
  bool keeps_texts() const { return keeps_texts_; }
  int num_open() const { return num_open_; }
  // Begins the stream's next request now; returns its bytes.  REQUIRES: has_next(stream).
  const std::string& Begin(size_t stream);
  bool has_next(size_t stream) const { return streams_[stream].next < size_.requests; }
  int tokens_wanted(size_t stream) const { return streams_[stream].tokens; }
  // Notes that parts of its answer arrived at `now`.
  void Arrived(size_t stream, absl::Time now);
  // Notes the whole answer, which came in that many parts.
  void Ended(size_t stream, int64_t parts, std::string text);
  // The result, once all have ended.
  LoadResult Finish();

 private:
  struct Stream {
    std::vector<std::string> bodies;
    int next = 0;
    int tokens = 0;  // of the request under way
    absl::Time begin, last;
    bool has_some = false;
  };
  const LoadSize size_;
  const bool keeps_texts_;
  std::vector<Stream> streams_;
  int num_open_ = 0;
  absl::Time begin_ = absl::InfiniteFuture();
  double cpu_begin_ = 0;
  LoadResult result_;
};

// Sockets to read, each with a number.
class LoadPoll {
 public:
  LoadPoll();
  absl::Status Add(int fd, size_t number);
  // Reads what has come from each socket and gives it to `came` (the number, the bytes, when; no bytes: its end), until
  // `is_over`.  Errors: those of `came`; DEADLINE_EXCEEDED: nothing came for `patience`.
  absl::Status Run(absl::Duration patience, absl::FunctionRef<bool()> is_over,
                   absl::FunctionRef<absl::Status(size_t number, absl::string_view bytes, absl::Time now)> came);

 private:
  UniqueFd epoll_;
  std::vector<int> fds_;  // by number
  std::string buffer_;
};

}  // namespace switchyard::bench
