// A batch of a few tokens written down in a test: owns what a RoutingView borrows.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard::popularity {

struct SmallBatch {
  RoutingShape shape;
  std::vector<int32_t> token_ids;
  std::vector<int16_t> experts;  // [T, L, K]

  // tokens [T][L * K]; ids are 0, 1, 2 … unless given.
  SmallBatch(RoutingShape batch_shape, const std::vector<std::vector<int16_t>>& tokens, std::vector<int32_t> ids = {})
      : shape(batch_shape), token_ids(std::move(ids)) {
    for (const std::vector<int16_t>& token : tokens) {
      if (token_ids.size() * token.size() == experts.size())
        token_ids.push_back(static_cast<int32_t>(token_ids.size()));
      experts.insert(experts.end(), token.begin(), token.end());
    }
  }

  RoutingView View() const {
    const int64_t layer_stride = shape.top_k, token_stride = layer_stride * shape.num_layers;
    return {.shape = shape,
            .num_tokens = static_cast<int64_t>(experts.size()) / token_stride,
            .token_ids = token_ids.data(),
            .experts = experts.data(),
            .token_stride = token_stride,
            .layer_stride = layer_stride};
  }
};

}  // namespace switchyard::popularity
