// The accepted requests that have not ended: admits and cancels them, and publishes the scheduler's events to their
// streams.
//
// Used on the engine's thread.  Each request's stream is closed exactly once, with an error or without.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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
#include "server/engine/worker_times.h"
#include "server/fleet/server_stall.h"
#include "server/fleet/serving_group.h"
#include "server/keys/roles.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

class LiveRequests {
 public:
  // All borrowed; they outlive this.  `tokenizer`: null if the model has none.
  LiveRequests(const ServerConfig* config, const tokenizer::Tokenizer* tokenizer, ServerMetrics* metrics,
               ServingGroup* group)
      : config_(config),
        tokenizer_(tokenizer),
        metrics_(metrics),
        group_(group),
        traces_(!config->otlp_endpoint.empty()) {}

  // Submits a request to the scheduler.  Its stream ends with an error if it is refused.
  void Submit(uint64_t handle, std::unique_ptr<InferenceRequest> request, std::shared_ptr<TokenStream> stream);
  // Ends a request with `status`; does nothing if the handle is unknown.
  void Cancel(uint64_t handle, const absl::Status& status);
  // Ends the caller's request of that id with finish reason ABORT, or if it is an admin everybody's of that id. Returns
  // false if there is none.
  bool Abort(const std::string& request_id, const Caller& caller);
  void Publish(std::vector<batching::Event> events, absl::Time now);
  // Checks time limits: of slow readers, of a group that does not form again, of the drain.  If a call is late, this
  // process was paused; readers could not read meanwhile.
  void Tick(absl::Time now);

  // A step is done, and its results are published next; for the spans of traced requests.
  void NoteStep(absl::Time sent, const batching::StepResult& result) {
    if (traces_) worker_times_.Add(sent, result.ranks);
  }
  // The group is another one.
  void NoteGroup() { worker_times_.Clear(); }

  // Refuses requests from now on.
  void Refuse() { draining_ = true; }
  // Likewise; calls `done` when the running ones have ended; ends them at `deadline`.
  void Drain(absl::Time deadline, std::function<void()> done);
  bool draining() const { return draining_; }
  // Ends the remaining requests with ServerStops.
  void EndAll();
  // Calls the drain's `done` if it was not called yet.
  void FinishDrain();

 private:
  // REQUIRES: the handle is of a live request.
  void CancelAllChoices(uint64_t handle);
  absl::Status Admit(const InferenceRequest& request, absl::Time now) const;
  absl::Status Refusal(const absl::Status& status) const;
  void PublishOne(batching::Event event, absl::Time now, std::vector<batching::Event>* more);
  // Note the first token and the end of a choice for the observer.
  void ObserveFirstToken(LiveRequest* live, int choice, const batching::TokenEvent& token) const;
  void ObserveEnd(const LiveRequest& live, int choice, const batching::FinishedEvent& finished) const;
  WorkerName NameOfRank(int32_t rank) const;
  void End(uint64_t handle, LiveRequest* live, absl::Time now);
  absl::Status ErrorOf(const LiveRequest& live, batching::FinishReason reason) const;

  const ServerConfig* const config_;
  const tokenizer::Tokenizer* const tokenizer_;
  ServerMetrics* const metrics_;
  ServingGroup* const group_;
  const bool traces_;
  WorkerTimes worker_times_;                                  // if it traces
  std::map<uint64_t, std::unique_ptr<LiveRequest>> live_;     // by handle = the scheduler's request id: oldest first
  absl::flat_hash_map<std::string, uint64_t> by_request_id_;  // by RequestKey
  std::vector<uint64_t> touched_;                             // live requests with chunks to flush
  ServerStall server_stall_;
  bool draining_ = false;
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  std::function<void()> drained_;
};

// UNAVAILABLE, DRAINING: the error of requests when the server stops.
absl::Status ServerStops();

}  // namespace switchyard::server
