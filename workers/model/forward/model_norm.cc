#include "workers/model/forward/model_norm.h"

#include "workers/ops/norm/layer_norm.h"
#include "workers/ops/norm/layer_norm_backward.h"
#include "workers/ops/norm/rms_norm.h"
#include "workers/ops/norm/rms_norm_backward.h"

namespace switchyard::model {

absl::Status Normalize(const Stream& stream, const ModelConfig& config, const NormViews& weights, const TensorView& x,
                       const TensorView& y) {
  if (config.norm == NormKind::kRms) return ops::RmsNorm(stream, {.eps = config.norm_eps}, x, weights.gamma, y);
  return ops::LayerNorm(stream, {.eps = config.norm_eps, .gamma = weights.gamma, .beta = weights.beta}, x, y);
}

absl::Status NormalizeBackward(const Stream& stream, const ModelConfig& config, const NormBackwardDesc& desc,
                               const TensorView& x, const TensorView& dy, const TensorView& dx) {
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
