// The norm before attention, feed-forwards and head, RMSNorm or LayerNorm by the config, and its backward.
// Errors: the ops' (rms_norm.h, layer_norm.h and their backward).
#pragma once

#include "absl/status/status.h"
#include "workers/model/config/config.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

// A norm's parameters, or their gradients.  Borrowed.
struct NormViews {
  TensorView gamma;  // [H]
  TensorView beta;   // [H]; RMSNorm: unused
};

absl::Status Normalize(const Stream& stream, const ModelConfig& config, const NormViews& weights,
                       const TensorView& x,   // [T, H] AccDType
                       const TensorView& y);  // [T, H] model dtype

struct NormBackwardDesc {
  NormViews weights;
  NormViews gradients;      // [H] AccDType, added to
  bool accumulate = false;  // add to dx
};

absl::Status NormalizeBackward(const Stream& stream, const ModelConfig& config, const NormBackwardDesc& desc,
                               const TensorView& x,    // [T, H] AccDType: what was normed
                               const TensorView& dy,   // [T, H] model dtype
                               const TensorView& dx);  // [T, H] AccDType

}  // namespace switchyard::model
