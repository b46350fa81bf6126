// Predicts which experts a later layer's gate will choose, from the rows that enter this layer's experts.
//
// Two kinds of map give the logits: `gate_ahead`, the later layer's own router on these rows, and `probe`, a fitted map
// (ridge_probe.h), which knows better (scheduler/popularity/README.md).  One product as large as a gate's, then the
// same top-k.  A row's prediction depends on that row alone.  Borrows the map.  On any device, in the stream's order.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// From rows [T, H] to logits [T, E].
struct ForecastMap {
  ops::Weight weight;  // [E, H]
  Tensor bias;         // [E] in the weight's dtype; empty: none
};

// A fitted map [E, H + 1] (RidgeProbe::Solve), rounded to the model's dtype, on the stream's device.
absl::StatusOr<ForecastMap> MakeForecastMap(const Stream& stream, const TensorView& fitted, DType dtype);

class GateForecast {
 public:
  // predicted[t] = the M experts of the largest logits of row t, best first, ties to the smaller id.
  // Errors (InvalidArgument): shapes or dtypes that do not fit; M outside [1, min(E, kMaxTopK)].
  absl::Status Predict(const Stream& stream, const TensorView& x,          // [T, H] the map's dtype
                       const ops::Weight& weight, const TensorView& bias,  // [E, H]; [E] or rank 0 for none
                       const TensorView& predicted);                       // [T, M] int32
  // Allocates scratch for so many rows, which else grows.  Errors: ResourceExhausted.
  struct Room {
    int64_t rows = 0, experts = 0, predicted = 0;  // T, E, M
    DType acc = DType::kF32;                       // AccDType of the maps
  };
  absl::Status Reserve(const Room& room, Device device);

 private:
  RowScratch logits_memory_, score_memory_;
};

}  // namespace switchyard::moe
