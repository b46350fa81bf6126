// The request log: lines to a file or to standard output, by a thread of its own.
//
// Thread-safe.  Add never blocks on the disk: lines wait in a bounded queue, and what does not fit, or cannot be
// written, is dropped and counted.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/base/io/unique_fd.h"
#include "server/observe/request_record.h"

namespace switchyard::server {

class RequestLog {
 public:
  static constexpr char kStandardOutput[] = "-";

  struct Options {
    std::string path;            // of a regular file, which is made with mode 0600 if there is none; or "-"
    size_t most_waiting = 8192;  // choices of requests; one without any counts as one
    std::function<void(int64_t requests)> on_dropped;  // counts them; any thread
  };
  // INVALID_ARGUMENT: the file cannot be opened for appending, or is not a regular one.
  static absl::StatusOr<std::unique_ptr<RequestLog>> Open(Options options);
  // As Stop.
  ~RequestLog();

  // Queues the line of the record.
  void Add(std::shared_ptr<const RequestRecord> record);
  // Opens the file again by its name, before further lines: it was renamed (logrotate).  If that fails, which is
  // logged, lines go on to the old one.  Does not block.
  void Reopen();
  // Writes what waits, for at most `limit`, and ends the thread.
  void Stop(absl::Duration limit = absl::Seconds(2));

 private:
  RequestLog(Options options, UniqueFd file);
  void Run();
  void ReopenNow();
  // Writes the line; returns errno if not all of it could be, else 0.
  int Write(absl::string_view line);
  void NoteDropped(int64_t requests, const std::string& why);
  absl::Time deadline() {
    absl::MutexLock lock(&mu_);
    return deadline_;
  }

  const Options options_;
  absl::Mutex mu_;
  std::deque<std::shared_ptr<const RequestRecord>> waiting_ ABSL_GUARDED_BY(mu_);
  size_t waiting_choices_ ABSL_GUARDED_BY(mu_) = 0;
  bool reopen_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();  // of writing, by MonotonicNow; set by Stop
  // Used by the thread alone:
  UniqueFd file_;         // none: standard output
  bool is_torn_ = false;  // the last line is not whole
  absl::Time next_warning_ = absl::InfinitePast();
  std::thread thread_;
};

}  // namespace switchyard::server
