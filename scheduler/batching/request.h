// A request as the scheduler gets it: a prompt, and how many choices of which length it wants.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/batching/sequence.h"
#include "scheduler/batching/step.h"

namespace switchyard::batching {

struct Request {
  RequestId id = 0;
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;      // `choice` is filled in by the scheduler; ignore_eos: leave stop_ids empty
  int32_t num_choices = 1;      // n; logprobs and experts of the prompt come with choice 0 only
  int32_t max_tokens = 1;       // outputs of each choice, >= 1; the context may end them earlier (kLength)
  absl::Time deadline = absl::InfiniteFuture();
  std::string cache_salt;  // tenants of different salts never share KV blocks
  uint64_t adapter = 0;
};

}  // namespace switchyard::batching
