// A record of how a model routed tokens, and of what was predicted beforehand: profiles are made from it offline, and
// the simulator replays it.
//
// Expert ids are logical: a trace does not depend on ranks, placement or offload.  Plain data; trace_file.h reads it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard::popularity {

// The predictions of an estimator that needs hidden states (gate_ahead, probe), for each token, before the gate ran.
struct TraceChannel {
  std::string name;       // "gate_ahead", "probe", "probe2" (two layers ahead)
  int num_predicted = 0;  // M experts a token and layer, best first
};

struct TraceSequence {
  std::string label;                              // where the text is from: "prose", "code"; may be empty
  int32_t num_prompt = 0;                         // leading tokens that were prefilled; the others were decoded
  std::vector<int32_t> token_ids;                 // [T]
  std::vector<int16_t> experts;                   // [T, L, K] best first; -1 = dropped
  std::vector<std::vector<int16_t>> predictions;  // by channel: [T, L, M]; -1 = none (the first layers)

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
};

struct RoutingTrace {
  std::string model;  // the served weights' hash: what a profile made from this is good for
  RoutingShape shape;
  std::vector<TraceChannel> channels;
  std::vector<TraceSequence> sequences;

  int64_t num_tokens() const;
};

// Tokens [begin, end) of a sequence as estimators see them.  Borrows.
RoutingView ViewOf(const RoutingTrace& trace, const TraceSequence& sequence, int64_t begin, int64_t end);

}  // namespace switchyard::popularity
