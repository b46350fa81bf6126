// The norm before attention, feed-forwards and head, RMSNorm or LayerNorm by the config, and its backward.
// Errors: the ops' (rms_norm.h, layer_norm.h and their backward).
#pragma once

#include "absl/status/status.h"
#include "workers/model/config/config.h"
#include "workers/ops/norm/layer_norm.h"
#include "workers/ops/norm/layer_norm_backward.h"
#include "workers/ops/norm/rms_norm.h"
#include "workers/ops/norm/rms_norm_backward.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

// A norm's parameters, or their gradients.  Borrowed.
struct NormViews {
  TensorView gamma;  // [H]
  TensorView beta;   // [H]; RMSNorm: unused
};

inline absl::Status Normalize(const Stream& stream, const ModelConfig& config, const NormViews& weights,
                              const TensorView& x,    // [T, H] AccDType
                              const TensorView& y) {  // [T, H] model dtype
  if (config.norm == NormKind::kRms)
    return ops::RmsNorm(stream, {.eps = config.norm_eps, .rounds_once = config.norm_rounds_once}, x, weights.gamma, y);
  return ops::LayerNorm(stream, {.eps = config.norm_eps, .gamma = weights.gamma, .beta = weights.beta}, x, y);
}

struct NormBackwardDesc {
  NormViews weights;
  NormViews gradients;      // [H] AccDType, added to
  bool accumulate = false;  // add to dx
};

inline absl::Status NormalizeBackward(const Stream& stream, const ModelConfig& config, const NormBackwardDesc& desc,
                                      const TensorView& x,     // [T, H] AccDType: what was normed
                                      const TensorView& dy,    // [T, H] model dtype
                                      const TensorView& dx) {  // [T, H] AccDType
  if (config.norm == NormKind::kRms) {
    return ops::RmsNormBackward(stream,
                                {.eps = config.norm_eps, .accumulate = desc.accumulate, .dgamma = desc.gradients.gamma},
                                x, desc.weights.gamma, dy, dx);
  }
  return ops::LayerNormBackward(stream,
                                {.eps = config.norm_eps,
                                 .gamma = desc.weights.gamma,
                                 .accumulate = desc.accumulate,
                                 .dgamma = desc.gradients.gamma,
                                 .dbeta = desc.gradients.beta},
                                x, dy, dx);
}

}  // namespace switchyard::model
