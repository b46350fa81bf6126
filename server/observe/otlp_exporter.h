// Sends the spans of requests to an OpenTelemetry collector: OTLP/HTTP with JSON, by a thread of its own.
//
// Thread-safe.  Add never waits for the collector: requests wait in a bounded queue, and what does not fit is dropped
// and counted.  Batches go out when they are full, or a second after their first request.  A batch that the collector
// could not take (no answer, 429, 502, 503, 504) is sent again a few times, later each time; anything else ends it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/base/clock.h"
#include "server/observe/http_post.h"
#include "server/observe/otlp_json.h"
#include "server/observe/request_record.h"

namespace switchyard::server {

class OtlpExporter {
 public:
  enum class Result { kSent, kDropped, kFailed };  // dropped: for want of room

  struct Options {
    std::string endpoint;  // http://HOST:4318; /v1/traces is appended unless it ends so
    OtlpResource resource;
    RandomBits random;                                           // for ids of spans; used by the thread
    std::function<void(Result result, int64_t spans)> on_spans;  // counts them; any thread
    int64_t most_waiting_spans = 16384;
    int64_t spans_in_batch = 512;
    absl::Duration batch_delay = absl::Seconds(1);
    absl::Duration timeout = absl::Seconds(10);     // of a try
    absl::Duration first_pause = absl::Seconds(1);  // before the second try; then twice as long each time
    int most_tries = 4;                             // of a batch; of those behind one that got no answer: 1
  };
  // INVALID_ARGUMENT: what is wrong with such an endpoint.
  static absl::Status CheckEndpoint(const std::string& endpoint);

  // REQUIRES: CheckEndpoint(options.endpoint) is OK.
  explicit OtlpExporter(Options options);
  // As Stop.
  ~OtlpExporter();

  // Queues the spans of the record, which must be traced.
  void Add(std::shared_ptr<const RequestRecord> record);
  // Sends what waits, for at most `limit`, without repetitions; counts the rest as failed, and ends the thread.
  void Stop(absl::Duration limit = absl::Seconds(2));

 private:
  using Batch = std::vector<std::shared_ptr<const RequestRecord>>;
  void Run();
  // Waits for a batch; empty: Stop was called, and nothing waits.
  Batch NextBatch();
  void Send(const Batch& batch);
  // One try: OK, UNAVAILABLE (another one makes sense, after *pause at least), or any other error.
  absl::Status Try(const std::string& body, int64_t spans, absl::Duration* pause);
  // Waits; false: Stop was called meanwhile.
  bool Pause(absl::Duration pause);
  void Warn(const absl::Status& status);
  bool IsOver() {
    absl::MutexLock lock(&mu_);
    return MonotonicNow() >= deadline_;
  }

  const Options options_;
  absl::Mutex mu_;
  std::deque<std::shared_ptr<const RequestRecord>> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t waiting_spans_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  // Used by the thread alone:
  HttpPost post_;
  bool is_reachable_ = true;  // the last batch got an answer
  absl::Time next_warning_ = absl::InfinitePast();
  std::thread thread_;
};

}  // namespace switchyard::server
