#include "scheduler/popularity/trace/routing_trace.h"

#include "scheduler/base/check.h"

namespace switchyard::popularity {

int64_t RoutingTrace::num_tokens() const {
  int64_t tokens = 0;
  for (const TraceSequence& sequence : sequences) tokens += sequence.num_tokens();
  return tokens;
}

RoutingView ViewOf(const RoutingTrace& trace, const TraceSequence& sequence, int64_t begin, int64_t end) {
  SY_CHECK(0 <= begin && begin <= end && end <= sequence.num_tokens());
  const int64_t per_token = int64_t{trace.shape.num_layers} * trace.shape.top_k;
  return {.shape = trace.shape,
          .num_tokens = end - begin,
          .token_ids = sequence.token_ids.data() + begin,
          .experts = sequence.experts.data() + begin * per_token,
          .token_stride = per_token,
          .layer_stride = trace.shape.top_k};
}

}  // namespace switchyard::popularity
