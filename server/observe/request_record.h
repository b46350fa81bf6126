// What is known of a request once it is over, for the request log and for traces: figures and names, no text of prompts
// or outputs and no keys.  Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/batching/sequence.h"
#include "server/observe/trace_context.h"

namespace switchyard::server {

// What one worker spent on the steps of a phase, in which it ran whatever else was in the batch, too.
struct WorkerTime {
  int64_t steps = 0;
  double total_seconds = 0;  // of which:
  double attention_seconds = 0;
  double expert_seconds = 0;
  double exchange_seconds = 0;  // with the other workers, waiting included

  WorkerTime operator-(const WorkerTime& earlier) const {
    return {.steps = steps - earlier.steps,
            .total_seconds = total_seconds - earlier.total_seconds,
            .attention_seconds = attention_seconds - earlier.attention_seconds,
            .expert_seconds = expert_seconds - earlier.expert_seconds,
            .exchange_seconds = exchange_seconds - earlier.exchange_seconds};
  }
};

// The worker that computed a choice's attention, as a group's member.
struct WorkerName {
  int32_t rank = -1;  // -1: the choice did not get that far
  std::string host = {};
  int64_t pid = 0;
  std::string device = {};
};

// One choice of an answer, as the engine ended it.
struct ChoiceRecord {
  int32_t choice = 0;
  batching::FinishReason reason = batching::FinishReason::kNone;
  batching::SequenceUsage usage = {};
  batching::SequenceTimings timings = {};              // by MonotonicNow
  WorkerName prefill_worker = {}, decode_worker = {};  // where its first output, and its last one, were computed
  // By rank, over the phase's steps; empty: not known (nobody traces it, or the group was lost meanwhile).
  std::vector<WorkerTime> prefill_times = {}, decode_times = {};
};

// How the call came.
enum class CallProtocol { kGrpc, kHttp };

struct RequestRecord {
  CallProtocol protocol = CallProtocol::kGrpc;
  std::string api;       // "grpc", or an HTTP path
  bool is_chat = false;  // messages, not a prompt
  std::string key;       // name of the caller's key; empty: none, or none is needed
  std::string client;    // address
  std::string id;        // of the request; empty: it was refused before it had one
  std::string model;
  TraceContext trace;
  // Times are MonotonicNow's.
  absl::Time arrival, end;
  absl::Duration wall_offset;  // what to add for the time of day

  // Of an accepted request:
  int32_t num_prompts = 0;
  int32_t num_choices = 1;    // of each prompt
  int64_t prompt_tokens = 0;  // of all prompts
  int32_t max_tokens = 0;
  batching::SamplingParams sampling;
  bool is_stream = true;

  // How it ended: a gRPC code's name ("OK", "RESOURCE_EXHAUSTED") and, of an error, its reason ("QUEUE_FULL").
  std::string code, reason;
  std::optional<int> http_status;  // of the answer's head; none: gRPC, or no head was sent

  std::vector<ChoiceRecord> choices;  // as they ended, of all prompts

  absl::Time OnWallClock(absl::Time monotonic) const { return monotonic + wall_offset; }
};

// "stop", "length" or "abort" (Abort, or the client went away), else "error".  Of several choices' ends the later in
// this list.
absl::string_view OutcomeOf(const RequestRecord& record);

// Figures of the whole request.
struct RequestTotals {
  int64_t cached_tokens = 0;  // of prompts, each counted once
  int64_t output_tokens = 0;
  // Queue: from the queueing of the first choice until one was scheduled.  Prefill: from there to the first token.
  // Decode: from there to the last token of the last choice.  TTFT: from the arrival to the first token.  None: the
  // request did not get that far.
  std::optional<absl::Duration> queue, prefill, decode, ttft;
};
RequestTotals TotalsOf(const RequestRecord& record);

}  // namespace switchyard::server
