// Dropout and router jitter of a training pass.  Plain data; a pass without it drops nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "workers/ops/dropout/dropout.h"

namespace switchyard::model {

// Each in [0, 1); 0: none.
struct NoiseRates {
  double embedding = 0;      // of the rows that the first layer gets
  double hidden = 0;         // of what each attention and each feed-forward adds to the residual
  double attention = 0;      // of attention's probabilities
  double router_jitter = 0;  // rows that MoE layers get are multiplied by numbers within 1 ± this
  double adapters = 0;       // of adapters' inputs
  bool any() const { return embedding > 0 || hidden > 0 || attention > 0 || router_jitter > 0 || adapters > 0; }
};

struct TrainingNoise {
  NoiseRates rates;
  std::vector<uint64_t> row_keys;  // [T] ops::RowKey of the batch's rows

  ops::NoiseDesc At(double rate, ops::NoiseSite site, int64_t layer) const {
    return {.rate = rate, .row_keys = row_keys, .site = site, .layer = layer};
  }
};

// A layer's parts of a pass's noise; of none where there is none.
struct LayerNoise {
  const TrainingNoise* noise = nullptr;
  int64_t layer = 0;

  ops::NoiseDesc attention() const { return At(&NoiseRates::attention, ops::NoiseSite::kAttention); }
  ops::NoiseDesc attention_out() const { return At(&NoiseRates::hidden, ops::NoiseSite::kAttentionOut); }
  ops::NoiseDesc feed_forward() const { return At(&NoiseRates::hidden, ops::NoiseSite::kFeedForward); }
  ops::NoiseDesc router() const { return At(&NoiseRates::router_jitter, ops::NoiseSite::kRouter); }
  ops::NoiseDesc adapters() const { return At(&NoiseRates::adapters, ops::NoiseSite::kAdapter); }

 private:
  ops::NoiseDesc At(double NoiseRates::*rate, ops::NoiseSite site) const {
    return noise == nullptr ? ops::NoiseDesc() : noise->At(noise->rates.*rate, site, layer);
  }
};

}  // namespace switchyard::model
