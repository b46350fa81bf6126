#include "scheduler/simulator/trace_replay.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "scheduler/popularity/predictors/live_estimates.h"
#include "scheduler/simulator/trace_batches.h"

namespace switchyard::simulator {
namespace {

constexpr placement::PlacementMode kModes[] = {placement::PlacementMode::kStatic,
                                               placement::PlacementMode::kStaticSpare, placement::PlacementMode::kLina,
                                               placement::PlacementMode::kAgreed};

absl::Status CheckOptions(const popularity::RoutingTrace& trace, const ReplayOptions& options) {
  const auto check = [](bool ok, absl::string_view field, int64_t value, absl::string_view limit) {
    if (ok) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("replay: ", field, " is ", value, ", wants ", limit));
  };
  const int experts = trace.shape.num_experts;
  RETURN_IF_ERROR(check(options.batch_tokens >= 1, "batch_tokens", options.batch_tokens, "1 at least"));
  RETURN_IF_ERROR(check(options.num_devices >= 1 && options.num_devices <= experts, "workers", options.num_devices,
                        absl::StrCat("1 to ", experts, ", the experts")));
  RETURN_IF_ERROR(check(options.spare_slots >= 1 && options.spare_slots <= experts, "spare_slots", options.spare_slots,
                        absl::StrCat("1 to ", experts)));
  RETURN_IF_ERROR(check(trace.num_tokens() >= 2 * options.batch_tokens, "the trace's number of tokens",
                        trace.num_tokens(), absl::StrCat("two batches of ", options.batch_tokens, " at least")));
  popularity::LiveOptions live;
  live.shape = trace.shape;
  for (const popularity::ProfileIdentity& identity : popularity::LiveProfiles(live))
    RETURN_IF_ERROR(popularity::CheckProfile(identity, popularity::LiveLimits(live, identity.context)));
  return absl::OkStatus();
}

class ModeReplay {
 public:
  static absl::StatusOr<ModeReplay> Make(placement::PlacementMode mode, const popularity::RoutingTrace& trace,
                                         const ReplayOptions& options) {
    placement::PolicyShape shape;
    shape.mode = mode;
    shape.top_k = trace.shape.top_k;
    // Copies take no time, so that the figures show the placement alone.
    shape.costs = {.copy_ps = 0, .row_ps = 1000};
    const int spare = mode == placement::PlacementMode::kStatic ? 0 : options.spare_slots;
    shape.residents.assign(static_cast<size_t>(trace.shape.num_layers),
                           placement::ContiguousPlacement(trace.shape.num_experts, options.num_devices, spare));
    ModeReplay replay;
    replay.figures_.mode = mode;
    ASSIGN_OR_RETURN(replay.policy_, placement::MakePlacementPolicy(std::move(shape)));
    return replay;
  }

  // estimate: of the layer after this one; empty: none.
  void Decide(int64_t step, int layer, const placement::RowCounts& counts, const popularity::Popularity& estimate) {
    std::vector<placement::LayerEstimate> estimates;
    if (!estimate.empty()) estimates.push_back({.layer = layer + 1, .popularity = estimate});
    const placement::LayerDecision decision =
        policy_->Decide({.step = step, .layer = layer, .counts = counts, .estimates = estimates});
    for (const placement::SlotPlan& plan : decision.prefetch) copies_ += placement::NumCopies(plan.changes);
    copies_ += placement::NumCopies(decision.demand.changes);
    int64_t rows = 0;
    for (const int32_t count : counts.rows) rows += count;
    if (rows > 0)
      ratios_.push_back(static_cast<double>(decision.split.busiest()) * counts.num_ranks / static_cast<double>(rows));
    ++decisions_;
  }

  ReplayReport::Mode Figures() {
    std::sort(ratios_.begin(), ratios_.end());
    const auto at = [&](double quantile) {
      return ratios_.empty() ? 0 : ratios_[static_cast<size_t>(quantile * static_cast<double>(ratios_.size() - 1))];
    };
    figures_.median = at(0.5);
    figures_.p95 = at(0.95);
    figures_.copies_per_layer = static_cast<double>(copies_) / static_cast<double>(std::max<int64_t>(1, decisions_));
    return figures_;
  }

 private:
  ReplayReport::Mode figures_;
  std::unique_ptr<placement::PlacementPolicy> policy_;
  std::vector<double> ratios_;
  int64_t copies_ = 0, decisions_ = 0;
};

// The trace's channels that the live estimators receive, with the least M of them.
struct Channels {
  std::vector<std::pair<popularity::Predictor, size_t>> of;
  int num_predicted = 1;
};

Channels ChannelsOf(const popularity::RoutingTrace& trace) {
  Channels channels;
  for (size_t c = 0; c < trace.channels.size(); ++c) {
    for (const popularity::Predictor predictor : {popularity::Predictor::kGateAhead, popularity::Predictor::kProbe}) {
      if (trace.channels[c].name != popularity::ChannelOf(predictor, 1)) continue;
      const int places = trace.channels[c].num_predicted;
      channels.num_predicted = channels.of.empty() ? places : std::min(channels.num_predicted, places);
      channels.of.emplace_back(predictor, c);
    }
  }
  return channels;
}

// The first `kept` of each token's `width` predictions.
std::vector<int16_t> FirstOf(const std::vector<int16_t>& predictions, int width, int kept) {
  std::vector<int16_t> first;
  for (size_t at = 0; at < predictions.size(); at += static_cast<size_t>(width))
    first.insert(first.end(), predictions.begin() + static_cast<int64_t>(at),
                 predictions.begin() + static_cast<int64_t>(at) + kept);
  return first;
}

// The estimate of the layer; empty: there is none.
popularity::Popularity ForecastOf(const TraceBatches& batches, const popularity::RoutingTrace& trace,
                                  const Channels& channels, int layer, popularity::LiveEstimates* live) {
  for (const auto& [predictor, channel] : channels.of) {
    const int width = trace.channels[channel].num_predicted;
    live->SetPredictions(predictor, layer, 1,
                         FirstOf(batches.Predictions(channel, layer), width, channels.num_predicted));
  }
  popularity::Popularity estimate(static_cast<size_t>(trace.shape.num_experts));
  if (!live->Estimate(batches.View(), layer, 1, absl::MakeSpan(estimate))) estimate.clear();
  return estimate;
}

void AddPredictors(const popularity::LiveEstimates& live, ReplayReport* report) {
  for (int j = 0; j < popularity::kNumLivePredictors; ++j) {
    const auto estimator = static_cast<popularity::LivePredictor>(j);
    const popularity::EstimateMeans means = live.MeansOf(estimator, 1);
    if (means.num_layers == 0) continue;
    report->estimators.push_back(
        {.name = std::string(NameOf(estimator)), .accuracy = means.accuracy, .distance = means.distance});
  }
  std::stable_sort(report->estimators.begin(), report->estimators.end(),
                   [](const auto& a, const auto& b) { return a.distance < b.distance; });
}

}  // namespace

absl::StatusOr<ReplayReport> ReplayTrace(const popularity::RoutingTrace& trace, const ReplayOptions& options) {
  RETURN_IF_ERROR(CheckOptions(trace, options));
  const int layers = trace.shape.num_layers;
  const Channels channels = ChannelsOf(trace);
  popularity::LiveOptions live_options{
      .shape = trace.shape, .phase = options.phase, .num_predicted = channels.num_predicted};
  live_options.first_full_passes = std::numeric_limits<int64_t>::max();
  live_options.counted_rows = options.batch_tokens;
  popularity::LiveEstimates live(live_options);
  std::vector<ModeReplay> modes;
  for (const placement::PlacementMode mode : kModes) {
    ASSIGN_OR_RETURN(ModeReplay replay, ModeReplay::Make(mode, trace, options));
    modes.push_back(std::move(replay));
  }
  TraceBatches batches(&trace, options.phase, options.batch_tokens);
  ReplayReport report;
  report.num_batches = batches.num_batches();
  for (int64_t batch = 0; batch < batches.num_batches(); ++batch) {
    batches.Load(batch);
    const popularity::RoutingView view = batches.View();
    live.BeginPass();
    ForecastOf(batches, trace, channels, 0, &live);
    for (int layer = 0; layer < layers; ++layer) {
      live.Observe(view, layer);
      popularity::Popularity estimate;
      if (layer + 1 < layers) estimate = ForecastOf(batches, trace, channels, layer + 1, &live);
      const std::vector<int32_t> rows = popularity::CountsByPart(view, layer, options.num_devices);
      const placement::RowCounts counts{
          .num_ranks = options.num_devices, .num_experts = trace.shape.num_experts, .rows = rows};
      for (ModeReplay& mode : modes) mode.Decide(batch, layer, counts, estimate);
    }
  }
  for (ModeReplay& mode : modes) report.modes.push_back(mode.Figures());
  AddPredictors(live, &report);
  return report;
}

}  // namespace switchyard::simulator
