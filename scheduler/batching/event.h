// Events that the scheduler reports to the server: values, in the order in which they have to reach the client.
//
// One choice has these: prompt-logprob events (if asked for; choice 0 only, positions in order), token events with
// index 0, 1, 2 …, and exactly one finished event, the last.  Expert-path events (if asked for) come in order of
// positions, without gaps, before the token that their last row gave; of choice 0 from position 0, of the others from
// the end of the prompt.  A stop id that ends its choice is sent, too: the server decides whether its text shows.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "scheduler/batching/sequence.h"

namespace switchyard::batching {

struct TokenEvent {
  int32_t index = 0;  // of the output token, from 0
  int32_t token = 0;
  std::optional<PositionLogprobs> logprobs = std::nullopt;  // if asked for
  absl::Time scheduled = absl::InfinitePast();              // of the first output: SequenceTimings::first_scheduled
};

struct PromptLogprobsEvent {
  int32_t first_position = 1;                    // then first_position + 1, … of the prompt
  std::vector<PositionLogprobs> positions = {};  // not empty
};

struct ExpertPathsEvent {
  int32_t first_position = 0;
  std::vector<int16_t> experts = {};  // [rows, MoE layers, K], not empty
};

struct FinishedEvent {
  FinishReason reason = FinishReason::kNone;
  SequenceUsage usage;
  SequenceTimings timings;
};

struct Event {
  RequestId request = 0;
  int32_t choice = 0;
  std::variant<TokenEvent, PromptLogprobsEvent, ExpertPathsEvent, FinishedEvent> what;
};

}  // namespace switchyard::batching
