// Clients whose streams go on while a server is attacked: each asks for one greedy answer after the other and compares
// it with that of an undisturbed server, also the beginning that it has when it is stopped.  Knows the gaps between
// messages of each stream.
//
// Thread-safe.  One thread and one connection for each stream; all are made on construction.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tests/e2e/harness.h"

namespace switchyard {

struct Gaps {
  absl::Duration median, p99, longest;
  int64_t count = 0;
};

class SteadyStreams {
 public:
  // The requests of `count` streams.
  static std::vector<v1::GenerateRequest> Requests(int count);

  // `wanted` are the undisturbed answers of `requests`; all three outlive this.  `half_http`: every second stream is
  // one of /v1/completions.
  SteadyStreams(const TestServer& server, const std::vector<v1::GenerateRequest>& requests,
                const std::vector<StreamSeen>& wanted, bool half_http = false);
  ~SteadyStreams() { Stop(); }
  // Cancels what runs, and compares what has come of it.
  void Stop();

  // Of the gaps that ended since `from`, and those that go on.
  Gaps GapsSince(absl::Time from);
  // Until each stream has got something since `from`; false after `limit`.
  bool AwaitAll(absl::Time from, absl::Duration limit);
  int64_t whole() const { return whole_; }
  int64_t compared() const { return compared_; }  // whole answers, and beginnings of those that were stopped
  int64_t refused() const { return refused_; }    // new requests, for want of a place
  // What went wrong and how often: ends, other refusals, other tokens.
  std::map<std::string, int> faults();

 private:
  struct Gap {
    absl::Time end;
    absl::Duration length;
  };
  void Run(size_t number);
  void Came(size_t number);
  void Began(size_t number);
  void Ended(size_t number);
  std::string RunOnce(client::Client& client, size_t number);
  std::string RunOverHttp(size_t number);
  // Counts the answer if it is that of an undisturbed server, or its beginning.
  std::string Compare(size_t number, const std::string& text, bool is_whole);

  const TestServer& server_;
  const std::vector<v1::GenerateRequest>& requests_;
  const std::vector<StreamSeen>& wanted_;
  const bool half_http_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> whole_{0}, compared_{0}, refused_{0};
  absl::Mutex mu_;
  std::vector<Gap> gaps_ ABSL_GUARDED_BY(mu_);         // by end
  std::vector<absl::Time> last_ ABSL_GUARDED_BY(mu_);  // each stream's last message or start; past: it does not run
  std::vector<absl::Time> came_ ABSL_GUARDED_BY(mu_);  // each stream's last message; past: there was none
  std::map<std::string, int> faults_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;  // last: they use what is above
};

}  // namespace switchyard
