// The end of a training pass: final norm, lm_head and cross-entropy, and their backward, some rows at a time, so that
// the logits of a batch never need memory of their own.
//
//   loss = Σ_t -log softmax(lm_head · norm(residual[t]))[target[t]]   over rows whose target is not negative
//
// scale is a factor of this sum's gradient: 1 / (unmasked tokens of all ranks), times that of accumulation.  Rows may
// come in segments, each with a sum and a scale of its own.  Sums are in double, row by row, so that a segment's has
// the same bits wherever its rows are.  Thread-compatible.  CPU only.
// Errors: InvalidArgument "target …" for one that is no token.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/model/backward/model_gradients.h"
#include "workers/model/forward/model.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

struct LossSum {
  double loss = 0;
  int64_t tokens = 0;  // rows in it
};

// Some rows that follow each other.
struct LossSegment {
  int64_t rows = 0;
  double scale = 0;  // of its loss' gradient
  double loss = 0;   // written
};

class LossHead {
 public:
  // model: borrowed, must outlive this.
  explicit LossHead(const Model* model);

  // Returns the loss alone.
  absl::StatusOr<LossSum> Evaluate(const Stream& stream, const TensorView& residual,  // [T, H] AccDType
                                   const IntView& targets);                           // [T]
  // Also writes d_residual and adds to the gradients of lm_head and final_norm.
  absl::StatusOr<LossSum> Run(const Stream& stream, const TensorView& residual, const IntView& targets, double scale,
                              const ModelGradients& gradients, const TensorView& d_residual);  // [T, H] AccDType
  // The same of segments, which cover all rows.
  absl::Status EvaluateSegments(const Stream& stream, const TensorView& residual, const IntView& targets,
                                absl::Span<LossSegment> segments);
  absl::Status RunSegments(const Stream& stream, const TensorView& residual, const IntView& targets,
                           const ModelGradients& gradients, const TensorView& d_residual,
                           absl::Span<LossSegment> segments);

 private:
  // Some rows.  Gradients null: the loss alone.
  struct Part {
    TensorView residual, d_residual = {};
    IntView targets = {};
    absl::Span<LossSegment> segments = {};  // which these rows are of, or parts of them
    int64_t done = 0;                       // rows of the first segment that come before these
    const ModelGradients* gradients = nullptr;
  };
  // Both add to the segments' losses.  REQUIRES: at most kLossRows rows.
  absl::Status RunPart(const Stream& stream, const Part& part);
  absl::Status RunParts(const Stream& stream, const Part& all);

  const Model* const model_;
  ScratchTensor x_, d_x_;   // [kLossRows, H]
  ScratchTensor logits_;    // [kLossRows, V] AccDType
  ScratchTensor d_logits_;  // [kLossRows, V], unless they are logits_
};

// Enough for fast products, few enough for small logits.
inline constexpr int64_t kLossRows = 256;

}  // namespace switchyard::model
