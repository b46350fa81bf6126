// Low-rank adapters that a model is served with beside each other: rows of a batch choose one (forward/row_adapters.h).
//
// Functions; thread-safe.  On the CPU.  Does not do: adapters of anything but attention's projections.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/checkpoint/adapters/lora_adapter.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/weights.h"
#include "workers/tensor/dtype.h"

namespace switchyard::model {

// Whether the adapter fits the model, and its numbers the dtype.  Errors name the matrix: Unimplemented: it adapts what
// is no projection of attention; InvalidArgument: a layer beyond the model's, another shape, with both, or a number
// that the dtype cannot hold, or a scale that its sums cannot.
absl::Status CheckServedAdapter(const ModelConfig& config, DType dtype, const checkpoint::LoraAdapter& adapter);

// The bytes of what PackServedAdapter makes.  REQUIRES: CheckServedAdapter is OK, also below.
int64_t ServedAdapterBytes(DType dtype, const checkpoint::LoraAdapter& adapter);

// Packs the adapter, rounded to the dtype: [L].  Errors: ResourceExhausted.
absl::StatusOr<std::vector<LayerAdapter>> PackServedAdapter(const ModelConfig& config, DType dtype,
                                                            const checkpoint::LoraAdapter& adapter);

}  // namespace switchyard::model
