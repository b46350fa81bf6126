// Balancing experts without a loss: each router has a bias that is added to its scores when experts are chosen, never
// to their weights (RouterDesc::bias); after each step the bias of an expert that had less than the mean load rises by
// `rate`, of one that had more it falls by as much, at the mean it stays (DeepSeek-V3, §2.1.2, gamma; Wang et al. 2024,
// "Auxiliary-Loss-Free Load Balancing", Algorithm 1).
//
// Load: rows of the whole step on all ranks that chose the expert, those included that a capacity has dropped.  No
// gradient, decay or clipping touches a bias, and it is not in the gradients' norm.  Pure; the same bits on all ranks.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "workers/tensor/tensor.h"

namespace switchyard::train {

// loads: [E] of one layer.  bias: E numbers in AccDType.
void MoveRouterBias(double rate, absl::Span<const int64_t> loads, const TensorView& bias);

}  // namespace switchyard::train
