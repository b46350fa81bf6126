// Load generator of the benchmark: decides when each request starts and records how it ended.
//
// Open loop: requests start at Poisson arrivals, whether or not earlier ones have ended.  Times count from the planned
// arrival, so a server that falls behind cannot hide it.  Closed loop: a fixed number of requests is under way.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "clients/cpp/messages_fwd.h"

namespace switchyard::client {
class Client;
}  // namespace switchyard::client

namespace switchyard::cli {

struct LoadSpec {
  double rate_per_second = 0;                          // > 0: open loop
  int concurrency = 1;                                 // closed loop: requests under way at once
  int num_requests = 0;                                // 0: no limit but the duration
  absl::Duration duration = absl::InfiniteDuration();  // no arrivals after it; infinite: only num_requests limits
  uint64_t seed = 0;                                   // of the arrivals
};

// Returns the times of an open loop's arrivals, counted from its start.  REQUIRES: rate > 0, and num_requests or
// duration is set.
std::vector<absl::Duration> PoissonArrivals(const LoadSpec& spec);

// One request's times, relative to its planned arrival.
struct Sample {
  absl::Duration first_token = absl::ZeroDuration();
  absl::Duration total = absl::ZeroDuration();
  std::vector<double> gap_seconds;  // between successive tokens; tokens of one message share its gap
  int num_prompt_tokens = 0;
  int num_tokens = 0;
  std::string error;  // the reason of an error ("QUEUE_FULL"); "" = finished
};

struct LoadResult {
  std::vector<Sample> samples;                    // in the order of the arrivals
  absl::Duration elapsed = absl::ZeroDuration();  // from the first arrival to the last end
};

// Most requests under way in an open loop.  Further ones are not started; they count as errors (CLIENT_LIMIT).
inline constexpr int kMaxUnderWay = 4096;

// Blocks until every request has ended, which takes at most the duration plus one request's time limit.
LoadResult RunLoad(client::Client* client, const LoadSpec& spec,
                   const std::function<v1::GenerateRequest(int)>& make_request);

}  // namespace switchyard::cli
