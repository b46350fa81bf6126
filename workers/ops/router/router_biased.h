// RouteTopK with a bias of the choice: rows [begin, end), on the CPU, one row after the other in plain C++ (E
// exponentials a row are little beside the gate's E · H products).  Internal to workers/ops: router.cc checks
// everything.
#pragma once

#include <cstdint>

#include "workers/ops/router/router.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

void RouteBiasedRows(const RouterDesc& desc, const TensorView& logits, const TensorView& topk_idx,
                     const TensorView& topk_weight, int64_t begin, int64_t end);

}  // namespace switchyard::ops
