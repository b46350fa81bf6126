// One running request: turns the scheduler's events of its choices into text, chunks and metrics.
//
// Used on the engine's thread.  The Take… methods fill the choice's chunk; Flush pushes the chunks into the stream.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/batching/event.h"
#include "server/engine/choice_output.h"
#include "server/engine/request.h"
#include "server/engine/stop_strings.h"
#include "server/engine/token_stream.h"
#include "server/engine/worker_times.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

class LiveRequest {
 public:
  // `tokenizer` and `metrics` are borrowed; `stream` is shared with the reactor.  No tokenizer: no text.
  LiveRequest(std::unique_ptr<InferenceRequest> request, std::shared_ptr<TokenStream> stream,
              const tokenizer::Tokenizer* tokenizer, ServerMetrics* metrics);

  const InferenceRequest& request() const { return *request_; }
  // Time since which the oldest output is unread; InfiniteFuture: none is.
  absl::Time UnreadSince() const { return stream_->WaitingSince(); }
  // This process stood still for `pause` until now.
  void Forgive(absl::Duration pause, absl::Time now) { stream_->Forgive(pause, now); }
  bool ended(int choice) const { return ended_[choice]; }
  // Whether all choices have ended, or one has failed.
  bool over() const { return !error_.ok() || unfinished_ == 0; }
  // The status with which the call ends.
  const absl::Status& error() const { return error_; }
  void set_error(absl::Status error) { error_ = std::move(error); }

  // Returns true if the token completes a stop string; the caller then cancels the choice.
  bool TakeToken(int choice, batching::TokenEvent token, absl::Time now);
  void TakePromptLogprobs(int choice, batching::PromptLogprobsEvent prompt);
  void TakePaths(int choice, batching::ExpertPathsEvent paths);
  // Why the choice ended, for its client: the last allowed token may complete a stop string, where the scheduler, which
  // sees no text, says kLength.
  batching::FinishReason EndOf(int choice, batching::FinishReason reason) const;
  // Returns false if the choice has failed; the call then needs an error.
  bool TakeFinished(int choice, const batching::FinishedEvent& finished);
  void Flush(absl::Time now);
  void Close(absl::Time now);

  // Of choice 0, if its request is traced: what the prefill's steps took, and the sums when they were done.
  std::vector<WorkerTime> prefill_times;
  WorkerTimes::Totals at_first_token;

 private:
  ServerMetrics* const metrics_;
  std::unique_ptr<InferenceRequest> request_;
  std::shared_ptr<TokenStream> stream_;
  const StopStrings stops_;
  std::vector<ChoiceOutput> choices_;  // [n]
  std::vector<OutputChunk> chunks_;    // [n] since the last Flush
  std::vector<bool> ended_;            // [n]
  int unfinished_;
  int32_t most_tokens_ = 0;  // of the longest choice that has ended
  bool saw_first_token_ = false;
  absl::Status error_;  // of a choice that failed
};

}  // namespace switchyard::server
