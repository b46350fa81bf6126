#include "tests/bench/placement/batch_plan.h"

#include <time.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/popularity/predictors/observed_predictor.h"
#include "scheduler/popularity/predictors/profile_predictor.h"
#include "scheduler/simulator/trace_batches.h"
#include "tests/lab/routing/share_correction.h"
#include "workers/comm/core/timed.h"

namespace switchyard::bench {
namespace {

absl::Status CheckOptions(const PlanOptions& options, const popularity::RoutingTrace& run) {
  if (options.first_layer < 0 || options.num_layers < 1 ||
      options.first_layer + options.num_layers > run.shape.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("layers ", options.first_layer, " to ",
                                                   options.first_layer + options.num_layers - 1, " of a trace with ",
                                                   run.shape.num_layers));
  }
  if (options.batch_tokens < options.num_ranks || run.num_tokens() < options.batch_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("batches of ", options.batch_tokens, " tokens on ",
                                                   options.num_ranks, " ranks, from a trace of ", run.num_tokens()));
  }
  return absl::OkStatus();
}

class Planner {
 public:
  Planner(const PlanOptions& options, const popularity::RoutingTrace& run) : options_(options), run_(run) {
    corrections_.assign(static_cast<size_t>(run.shape.num_layers), ShareCorrection(run.shape.num_experts));
  }

  absl::Status MakePredictor(const popularity::RoutingTrace& fit) {
    if (options_.estimator == "path") {
      if (!(fit.shape == run_.shape)) return absl::InvalidArgumentError("the traces are of different models");
      profile_.emplace(popularity::ProfileIdentity{.model = fit.model, .shape = fit.shape, .phase = options_.phase},
                       popularity::ProfileLimits());
      for (const popularity::TraceSequence& sequence : fit.sequences) {
        if (!options_.leave_out.empty() && sequence.label == options_.leave_out) continue;
        for (int layer = 0; layer < fit.shape.num_layers; ++layer) {
          profile_->Observe(popularity::ViewOf(fit, sequence, 0, sequence.num_tokens()), layer);
        }
      }
      path_.emplace(&*profile_, popularity::ProfilePredictorOptions{});
      return absl::OkStatus();
    }
    for (size_t c = 0; c < run_.channels.size(); ++c) {
      if (run_.channels[c].name == options_.estimator) channel_ = static_cast<int>(c);
    }
    if (channel_ < 0) {
      return absl::InvalidArgumentError(absl::StrCat("the trace has no channel \"", options_.estimator, "\""));
    }
    observed_.emplace(run_.shape);
    return absl::OkStatus();
  }

  PlannedLayer Plan(const simulator::TraceBatches& batches, int layer) {
    const popularity::RoutingView batch = batches.View();
    const auto width = static_cast<size_t>(run_.shape.num_experts);
    PlannedLayer planned;
    planned.counts = popularity::CountsByPart(batch, layer, options_.num_ranks);
    popularity::Popularity actual(width);
    if (channel_ >= 0) {
      observed_->SetPredictions(layer, run_.channels[static_cast<size_t>(channel_)].num_predicted,
                                batches.Predictions(static_cast<size_t>(channel_), layer));
    }
    const double begin = comm::ThreadCpuSeconds();
    const popularity::Popularity estimate =
        path_.has_value() ? path_->Estimate(batch, layer) : observed_->Estimate(batch, layer);
    seconds_.push_back((comm::ThreadCpuSeconds() - begin) / options_.num_ranks);
    if (estimate.empty()) return planned;
    for (size_t i = 0; i < planned.counts.size(); ++i) actual[i % width] += planned.counts[i] * popularity::kRow;
    planned.estimate = estimate;
    ShareCorrection& correction = corrections_[static_cast<size_t>(layer)];
    correction.Apply(absl::MakeSpan(planned.estimate));
    correction.Update(estimate, actual, batch.num_tokens * run_.shape.top_k);
    return planned;
  }

  double MedianSeconds() {
    std::nth_element(seconds_.begin(), seconds_.begin() + static_cast<int64_t>(seconds_.size() / 2), seconds_.end());
    return seconds_[seconds_.size() / 2];
  }

 private:
  const PlanOptions& options_;
  const popularity::RoutingTrace& run_;
  std::optional<popularity::PathProfile> profile_;
  std::optional<popularity::ProfilePredictor> path_;       // the estimator: this
  std::optional<popularity::ObservedPredictor> observed_;  // or this
  int channel_ = -1;
  std::vector<ShareCorrection> corrections_;  // [L]
  std::vector<double> seconds_;
};

}  // namespace

absl::StatusOr<BatchPlan> PlanBatches(const PlanOptions& options, const popularity::RoutingTrace& fit,
                                      const popularity::RoutingTrace& run) {
  RETURN_IF_ERROR(CheckOptions(options, run));
  Planner planner(options, run);
  RETURN_IF_ERROR(planner.MakePredictor(fit));
  simulator::TraceBatches batches(&run, options.phase, options.batch_tokens);
  BatchPlan plan{.num_ranks = options.num_ranks, .shape = run.shape, .batches = {}};
  for (int b = 0; b < options.num_batches; ++b) {
    batches.Load(b % batches.num_batches());
    std::vector<PlannedLayer>& layers = plan.batches.emplace_back();
    for (int layer = 0; layer < options.num_layers; ++layer) {
      layers.push_back(planner.Plan(batches, options.first_layer + layer));
    }
  }
  plan.num_distinct = batches.num_batches();
  plan.estimate_seconds = planner.MedianSeconds();
  return plan;
}

}  // namespace switchyard::bench
