// A training step of a papers' model, scaled: what its layers take, what they send, and which gradients they leave.
// Plain data.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/time/time.h"

namespace switchyard::bench {

struct StepShape {
  int layers = 1;
  int64_t row_bytes = 0;  // of a rank's rows of a layer, each way, those that stay among them
  // Forward; backward takes twice as long (scheduler/PAPERS.md, "Emulated clusters").  Experts' time is of all rows of
  // a rank, however many experts.
  absl::Duration attention, experts;
  // Elements of gradients (fp32), in the order in which backward completes them.
  std::vector<int64_t> feed_forward, attention_out, attention_in;  // of a layer, what every rank has
  std::vector<int64_t> expert;                                     // of one expert
  std::vector<int64_t> head, embedding;                            // before and after all layers
  // Of an encoder-decoder: the decoder's first layer, or -1; what each of its layers has besides in the two stages of
  // attention, and what is complete with the first of them.
  int decoder_layer = -1;
  std::vector<int64_t> decoder_out, decoder_in, decoder_embedding;
};

// The gradients that become complete in one layer's stages: the lists above, put together.
struct LayerElements {
  std::vector<int64_t> feed_forward, attention_out, attention_in;
};
inline LayerElements ElementsOfLayer(const StepShape& shape, int layer_idx) {
  LayerElements all = {shape.feed_forward, shape.attention_out, shape.attention_in};
  const auto append = [](const std::vector<int64_t>& more, std::vector<int64_t>* to) {
    to->insert(to->end(), more.begin(), more.end());
  };
  if (shape.decoder_layer >= 0 && layer_idx >= shape.decoder_layer) {
    append(shape.decoder_out, &all.attention_out);
    append(shape.decoder_in, &all.attention_in);
  }
  if (layer_idx == shape.decoder_layer) append(shape.decoder_embedding, &all.attention_in);
  return all;
}

inline int64_t TotalOf(const std::vector<int64_t>& elements) {
  return std::accumulate(elements.begin(), elements.end(), int64_t{0});
}

inline constexpr int64_t kGradientBytes = 4;  // of an element
inline constexpr int kBackwardOverForward = 2;

}  // namespace switchyard::bench
