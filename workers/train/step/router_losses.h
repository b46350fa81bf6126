// Losses of the routers, from their statistics of a forward pass: load balancing and router z-loss; and balancing
// without a loss.
//
//   kAllLayers  as HuggingFace computes it: all layers' rows as one: E · Σ_e (Σ_k share of rows whose k-th choice is e)
//               · (mean probability of e)
//   kPerLayer   as GShard (Lepikhin 2020, Algorithm 1) and Switch: for each layer E · Σ_e (share of rows whose first
//               choice is e) · (mean probability of e); the mean over layers
//   z-loss      (Zoph 2022, ST-MoE, eq. 5) the mean over rows and layers of logsumexp(logits)²
// Choices count before any capacity drops them (GShard's c_e).  Shares are constants to the gradient.  Statistics are
// summed over ranks before they are multiplied with each other.  Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/jobs/job_spec.h"
#include "workers/moe/layer/moe_backward.h"
#include "workers/ops/router/router_backward.h"
#include "workers/tensor/tensor.h"

namespace switchyard::train {

struct RouterLossOptions {
  jobs::BalanceLoss balance = jobs::BalanceLoss::kAllLayers;
  double balance_weight = 0;  // >= 0
  double z_weight = 0;        // >= 0
};

struct RouterLosses {
  double balance = 0;  // without weights; 1 = balanced, for top-1
  double z = 0;
  std::vector<moe::RouterLoss> of_layers;           // [L] weighted: backward adds them
  std::vector<std::vector<double>> prob_gradients;  // [L][E] the memory that those show
};

// totals: [L] of all ranks, empty for dense layers.  num_rows: of all ranks; 0 gives zeros.
// scale: multiplies the gradients (the micro-batch's part of the step's rows).
RouterLosses ComputeRouterLosses(const RouterLossOptions& options, absl::Span<const ops::RouterStatistics> totals,
                                 int64_t num_rows, double scale);

// Balances experts without a loss: each router has a bias that is added to its scores when experts are chosen, never to
// their weights (RouterDesc::bias); it rises by `rate` for an expert below the mean load and falls by as much above it
// (DeepSeek-V3, §2.1.2, gamma; Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing", Algorithm 1).  loads: [E] rows
// of the step on all ranks that chose the expert, dropped ones included.  bias: E numbers in AccDType, which no
// gradient, decay or clipping touches.  The same bits on all ranks.
void MoveRouterBias(double rate, absl::Span<const int64_t> loads, const TensorView& bias);

}  // namespace switchyard::train
