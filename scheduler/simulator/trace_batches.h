// Whole batches cut from a routing trace as a server would mix them.
//
//   kPrefill  a batch is the next B tokens of the trace, over the ends of sequences
//   kDecode   the trace's tokens are cut into B equal streams, and batch i is token i of each
// Borrows the trace.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/popularity/path_profile.h"
#include "scheduler/popularity/trace/routing_trace.h"

namespace switchyard::simulator {

class TraceBatches {
 public:
  // REQUIRES: batch_tokens >= 1; the trace outlives this.
  TraceBatches(const popularity::RoutingTrace* trace, popularity::Phase phase, int64_t batch_tokens);

  int64_t num_batches() const { return num_batches_; }
  // REQUIRES: 0 <= batch < num_batches().
  void Load(int64_t batch);
  // The routing of the batch that was loaded last; valid until the next Load.
  popularity::RoutingView View() const;
  // The predictions of channel c for the batch's tokens in `layer`: [T, M].
  std::vector<int16_t> Predictions(size_t channel, int layer) const;

 private:
  struct Token {
    const popularity::TraceSequence* sequence = nullptr;
    int64_t position = 0;
  };
  Token At(int64_t index) const;

  const popularity::RoutingTrace* trace_;
  popularity::Phase phase_;
  int64_t batch_tokens_;
  int64_t num_batches_ = 0;
  std::vector<int64_t> begins_;     // [sequences + 1] tokens before each
  std::vector<Token> tokens_;       // [T]
  std::vector<int32_t> token_ids_;  // [T]
  std::vector<int16_t> experts_;    // [T, L, K]
};

}  // namespace switchyard::simulator
