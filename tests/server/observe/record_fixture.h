// A request's record with round figures: two choices, the second of which was stopped by its length.
#pragma once

#include "server/observe/request_record.h"

namespace switchyard::server {

inline constexpr absl::Time kArrival = absl::FromUnixSeconds(1000000);

inline RequestRecord TestRecord() {
  const auto at = [](int milliseconds) { return kArrival + absl::Milliseconds(milliseconds); };
  RequestRecord record;
  record.protocol = CallProtocol::kHttp;
  record.api = "/v1/chat/completions";
  record.is_chat = true;
  record.key = "alice";
  record.client = "10.0.0.1";
  record.id = "req-1";
  record.model = "demo";
  record.trace = {.trace_id = "0af7651916cd43dd8448eb211c80319c",
                  .parent_span_id = "b7ad6b7169203331",
                  .span_id = "00f067aa0ba902b7",
                  .sampled = true,
                  .state = "foo=1"};
  record.arrival = kArrival;
  record.end = at(100);
  record.wall_offset = absl::Seconds(1795880000);  // makes the arrival 2026-12-10 05:20:00
  record.num_prompts = 1;
  record.num_choices = 2;
  record.prompt_tokens = 12;
  record.max_tokens = 16;
  record.sampling.temperature = 0.5;
  record.sampling.top_k = 7;
  record.sampling.seed = 42;
  record.code = "OK";
  record.http_status = 200;
  ChoiceRecord choice;
  choice.reason = batching::FinishReason::kStop;
  choice.usage = {.prompt_tokens = 12, .cached_tokens = 4, .completion_tokens = 5, .prefill_rank = 1, .last_rank = 0};
  choice.timings = {
      .queued = at(1), .first_scheduled = at(3), .first_token = at(20), .last_token = at(60), .finished = at(60)};
  choice.prefill_worker = {.rank = 1, .host = "node-1", .pid = 11, .device = "cuda:0"};
  choice.decode_worker = {.rank = 0, .host = "node-0", .pid = 10, .device = "cpu"};
  choice.prefill_times = {{.steps = 1, .total_seconds = 0.01}, {.steps = 1, .expert_seconds = 0.005}};
  choice.decode_times = {{.steps = 4}, {.steps = 4}};
  record.choices.push_back(choice);
  choice.choice = 1;
  choice.reason = batching::FinishReason::kLength;
  choice.usage.cached_tokens = 8;
  choice.usage.completion_tokens = 16;
  choice.timings.first_token = at(25);
  choice.timings.last_token = at(90);
  choice.timings.finished = at(90);
  choice.prefill_times.clear();
  choice.decode_times.clear();
  record.choices.push_back(choice);
  return record;
}

// A request that was refused before anything was known of it.
inline RequestRecord RefusedRecord() {
  RequestRecord record;
  record.api = "grpc";
  record.client = "::1";
  record.model = "demo";
  record.arrival = kArrival;
  record.end = kArrival + absl::Microseconds(1500);
  record.code = "RESOURCE_EXHAUSTED";
  record.reason = "QUEUE_FULL";
  return record;
}

}  // namespace switchyard::server
