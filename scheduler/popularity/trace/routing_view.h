// The rows of one rank in one batch and how they were routed so far: what estimators look at.
//
// Borrows everything; thread-safe to read.  `layer` counts MoE layers only.  Layers whose gate has not run may hold
// anything: an estimator of layer i reads layers < i, and i itself when it observes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::popularity {

struct RoutingShape {
  int num_layers = 0;   // MoE layers
  int num_experts = 0;  // E
  int top_k = 0;        // K
  bool operator==(const RoutingShape& other) const = default;
};

struct RoutingView {
  RoutingShape shape;
  int64_t num_tokens = 0;
  const int32_t* token_ids = nullptr;  // [T]; null = unknown
  const int16_t* experts = nullptr;    // expert of (t, l, k) at experts[t * token_stride + l * layer_stride + k]
  int64_t token_stride = 0;
  int64_t layer_stride = 0;

  int64_t num_rows() const { return num_tokens * shape.top_k; }
  // The experts that token t chose in layer l, best first, [K]; -1 = dropped.
  absl::Span<const int16_t> Experts(int64_t t, int l) const {
    return absl::MakeConstSpan(experts + t * token_stride + l * layer_stride, static_cast<size_t>(shape.top_k));
  }
};

// Rows that each expert gets of the batch in `layer` [E].
std::vector<int64_t> CountsOf(const RoutingView& batch, int layer);

// Tokens [begin, begin + count) of the batch.
RoutingView TokensOf(RoutingView batch, int64_t begin, int64_t count);
// [parts, E] rows that each of `parts` equal runs of the batch's tokens has, as ranks would hold them.
std::vector<int32_t> CountsByPart(const RoutingView& batch, int layer, int parts);

}  // namespace switchyard::popularity
