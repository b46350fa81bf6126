// What a layer's experts will get, told before its gate has run.
//
// An estimator reads what is known of a batch (token ids, experts of earlier layers; some also what worker ops said of
// hidden states, or earlier batches) and adds fixed-point rows for one layer.  Each rank estimates its own rows; the
// sums of all ranks are gathered, so that every rank has the same numbers.
// Thread-compatible.  Deterministic: the same calls in the same order give the same numbers, on every machine (no
// floating point in what is returned, or only such as rounds the same everywhere).
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/popularity/popularity.h"
#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard::popularity {

class LoadPredictor {
 public:
  virtual ~LoadPredictor() = default;
  // "marginal", "path", "token", "gate_ahead", "probe", "last_batch", "blend": also the metric's label.
  virtual absl::string_view name() const = 0;
  // Adds T * K * kRow rows in all to `popularity` [E]: how many of the batch's rows each expert of `layer` gets.
  // False, and nothing added, if it has no estimate of this layer (path in layer 0, a probe that was not fitted).
  // REQUIRES: layers < layer of the batch are known.
  virtual bool Estimate(const RoutingView& batch, int layer, absl::Span<int64_t> popularity) const = 0;
  // The gate of `layer` has run: what it chose for the same batch is known now.  Called after Estimate.
  virtual void Observe(const RoutingView& batch, int layer) = 0;
};

// An estimator that also says it of each token, as prefetching and the share of a token's own experts want it.
class TokenPredictor : public LoadPredictor {
 public:
  // predicted [T, num_predicted], best first, distinct; -1 from where it has no more.  False as in Estimate.
  virtual bool Predict(const RoutingView& batch, int layer, int num_predicted, absl::Span<int16_t> predicted) const = 0;
};

}  // namespace switchyard::popularity
