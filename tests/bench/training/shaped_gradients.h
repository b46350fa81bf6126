// Gradients of a model that is none: tensors of a step's shapes, in memory of their own, as the synchroniser of
// gradients takes them.
#pragma once

#include "absl/status/statusor.h"
#include "tests/bench/training/step_shape.h"
#include "workers/model/backward/model_gradients.h"
#include "workers/tensor/tensor.h"

namespace switchyard::bench {

class ShapedGradients {
 public:
  // experts: that the rank has.  Errors: InvalidArgument (more gradients in a stage than models have),
  // ResourceExhausted.
  static absl::StatusOr<ShapedGradients> Create(const StepShape& shape, int experts);

  const model::ModelGradients& views() const { return views_; }

 private:
  Tensor memory_;  // zeros, so that sums of sums stay what they are
  model::ModelGradients views_;
};

}  // namespace switchyard::bench
