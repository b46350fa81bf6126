// Limits of the numbers that a trainer computes with.  The check of a submitted spec (job_spec.h) and the trainer
// (workers/train/step/trainer_options.cc) share them, so that no job is accepted whose trainer refuses it later.  Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace switchyard::jobs {

struct RealRange {
  double least = 0;
  double below = 0;
  bool Holds(double value) const { return value >= least && value < below; }  // (NaN is in none)
};

// AdamW moves a weight by about the learning rate in each step, and weights are around 0.02: above 10 nothing is
// learned, and far above fp32 overflows.
inline constexpr double kMaxLearningRate = 10;
inline constexpr RealRange kBetas = {0, 1};
// fp32 holds the least one: a smaller one would become 0, and a parameter without gradients 0 / 0.
inline constexpr RealRange kEpsilons = {1e-30, 1};
inline constexpr RealRange kWeightDecays = {0, 10};
inline constexpr RealRange kRateFactors = {1e-6, 1e6};  // of a rule for parameters; their rate has a limit of its own
inline constexpr RealRange kLoraAlphas = {1e-6, 1e6};
inline constexpr RealRange kDpoBetas = {1e-6, 1e3};
inline constexpr RealRange kLabelSmoothings = {0, 0.5};  // with a half the loss has no better and worse answer
inline constexpr RealRange kClipNorms = {0, 1e30};
inline constexpr RealRange kRouterLossWeights = {0, 1e6};  // balance_weight, z_weight
inline constexpr RealRange kBalanceBiasRates = {0, 1};
inline constexpr RealRange kNoiseRates = {0, 1};  // dropout, router_jitter

inline constexpr int64_t kMaxMicroBatchRows = 1 << 20;  // tokens that a worker computes at a time

// InvalidArgument "NAME is VALUE, outside [least, below)".
inline absl::Status CheckReal(absl::string_view name, double value, const RealRange& range) {
  if (range.Holds(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", outside [", range.least, ", ", range.below, ")"));
}

}  // namespace switchyard::jobs
