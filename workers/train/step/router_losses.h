// Losses that routers have of their own, from what they gave in a forward pass: load balancing and router z-loss.
//
//   kAllLayers  as HuggingFace computes it: all layers' rows as one: E · Σ_e (Σ_k share of rows whose k-th choice is e)
//               · (mean probability of e)
//   kPerLayer   as GShard (Lepikhin 2020, Algorithm 1) and Switch: for each layer E · Σ_e (share of rows whose first
//               choice is e) · (mean probability of e); the mean over layers
//   z-loss      (Zoph 2022, ST-MoE, eq. 5) the mean over rows and layers of logsumexp(logits)²
// Choices count whether a capacity has dropped them or not (GShard's c_e, which it counts before it looks for room).
// Shares are constants to the gradient.  Statistics are summed over ranks before they are multiplied with each other.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/jobs/job_spec.h"
#include "workers/moe/layer/moe_backward.h"
#include "workers/ops/router/router_backward.h"

namespace switchyard::train {

struct RouterLossOptions {
  jobs::BalanceLoss balance = jobs::BalanceLoss::kAllLayers;
  double balance_weight = 0;  // >= 0
  double z_weight = 0;        // >= 0
};

struct RouterLosses {
  double balance = 0;  // without weights; 1 = balanced, for top-1
  double z = 0;
  std::vector<moe::RouterLoss> of_layers;           // [L] weighted: what backward adds
  std::vector<std::vector<double>> prob_gradients;  // [L][E] what those show
};

// totals: [L] of all ranks, empty for dense layers.  num_rows: of all ranks; 0 gives zeros.
// scale: multiplies the gradients (1 / number of micro-batches).
RouterLosses ComputeRouterLosses(const RouterLossOptions& options, absl::Span<const ops::RouterStatistics> totals,
                                 int64_t num_rows, double scale);

}  // namespace switchyard::train
