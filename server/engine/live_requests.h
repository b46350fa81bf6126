// The requests that were taken and have not ended: admission, cancellation, and the way from the scheduler's events to
// their streams.
//
// Of the engine's thread.  Whatever becomes of a request, its stream is closed once, with an error or without.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/batching/scheduler.h"
#include "server/config.h"
#include "server/engine/live_request.h"
#include "server/engine/request.h"
#include "server/engine/token_stream.h"
#include "server/fleet/serving_group.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

class LiveRequests {
 public:
  // All borrowed; they outlive this.  `tokenizer`: null if the model has none.
  LiveRequests(const ServerConfig* config, const tokenizer::Tokenizer* tokenizer, ServerMetrics* metrics,
               ServingGroup* group)
      : config_(config), tokenizer_(tokenizer), metrics_(metrics), group_(group) {}

  // The stream ends with an error when the request cannot be taken.
  void Submit(uint64_t handle, std::unique_ptr<InferenceRequest> request, std::shared_ptr<TokenStream> stream);
  // Ends a request with `status`; unknown handles: nothing happens.
  void Cancel(uint64_t handle, const absl::Status& status);
  // Ends the request of that id with finish reason ABORT.  False: there is none.
  bool Abort(const std::string& request_id);
  void Publish(std::vector<batching::Event> events, absl::Time now);
  // What waits for a time limit: readers that are too slow, a group that does not come back, the drain.
  void Tick(absl::Time now);

  // Takes no request any more.
  void Refuse() { draining_ = true; }
  // Likewise; calls `done` when those that run have ended, or are ended as it is `deadline`.
  void Drain(absl::Time deadline, std::function<void()> done);
  bool draining() const { return draining_; }
  // Those that remain end with ServerStops.
  void EndAll();
  // Calls the drain's `done`, if that was not called yet.
  void FinishDrain();

 private:
  absl::Status Admit(const InferenceRequest& request, absl::Time now) const;
  absl::Status Refusal(const absl::Status& status) const;
  void PublishOne(batching::Event event, absl::Time now, std::vector<batching::Event>* more);
  void End(uint64_t handle, LiveRequest* live, absl::Time now);
  absl::Status ErrorOf(const LiveRequest& live, batching::FinishReason reason) const;

  const ServerConfig* const config_;
  const tokenizer::Tokenizer* const tokenizer_;
  ServerMetrics* const metrics_;
  ServingGroup* const group_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<LiveRequest>> live_;  // by handle = the scheduler's request id
  absl::flat_hash_map<std::string, uint64_t> by_request_id_;
  std::vector<uint64_t> touched_;  // live requests with chunks to flush
  bool draining_ = false;
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  std::function<void()> drained_;
};

// UNAVAILABLE, DRAINING: what requests of a server end with that stops.
absl::Status ServerStops();

}  // namespace switchyard::server
