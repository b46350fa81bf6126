#include "scheduler/popularity/predictors/predictor_monitor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "scheduler/base/check.h"

namespace switchyard::popularity {
namespace {

//                              On     Off    Trial
constexpr bool kMay[3][3] = {{false, true, false},  // On
                             {false, false, true},  // Off
                             {true, true, false}};  // Trial
static_assert(!kMay[static_cast<int>(PredictorState::kOff)][static_cast<int>(PredictorState::kOn)],
              "nothing comes back without a trial");

// Worse than 9/8 of the yardstick's distance switches off, better than 15/16 of it on; between, nothing changes.
bool ClearlyWorse(int64_t own, int64_t yardstick) { return 8 * own > 9 * yardstick; }
bool ClearlyBetter(int64_t own, int64_t yardstick) { return 16 * own < 15 * yardstick; }

double Figure(const RunningMean& mean) { return static_cast<double>(mean.Mean()) / kWholeDistance; }

}  // namespace

PredictorMonitor::PredictorMonitor(std::vector<std::string> names, int num_layers, MonitorOptions options)
    : names_(std::move(names)), options_(options) {
  SY_CHECK_GE(names_.size(), 1u);
  SY_CHECK(options_.min_batches >= 1 && options_.trial_batches >= 1 && options_.wait_batches >= 1);
  Watched fresh;
  fresh.wait_batches = options_.wait_batches;
  layers_.assign(static_cast<size_t>(num_layers),
                 {.estimators = std::vector<Watched>(names_.size(), fresh), .best = 0});
}

PredictorState PredictorMonitor::StateOf(int layer, int estimator) const {
  return layers_[static_cast<size_t>(layer)].estimators[static_cast<size_t>(estimator)].state;
}

OffVerdict PredictorMonitor::LastOff(int layer, int estimator) const {
  return layers_[static_cast<size_t>(layer)].estimators[static_cast<size_t>(estimator)].verdict;
}

bool PredictorMonitor::Wants(int layer, int estimator) const {
  return StateOf(layer, estimator) != PredictorState::kOff;
}

void PredictorMonitor::MoveTo(PredictorState next, Watched* watched) {
  SY_CHECK(kMay[static_cast<int>(watched->state)][static_cast<int>(next)]);
  if (next == PredictorState::kOff) watched->verdict = {watched->own.Mean(), watched->yardstick.Mean()};
  watched->state = next;
  watched->num_batches = 0;
  watched->own = watched->yardstick = RunningMean();
}

void PredictorMonitor::Judge(int layer, size_t j, Watched* watched) {
  const int64_t own = watched->own.Mean(), yardstick = watched->yardstick.Mean();
  const auto report = [&](absl::string_view what, absl::string_view why) {
    reports_.push_back(absl::StrFormat(
        "estimator %s is %s in layer %d: its total-variation distance %.3f is %s %s's %.3f (%d batches)", names_[j],
        what, layer, Figure(watched->own), why, names_[0], Figure(watched->yardstick), watched->num_batches));
  };
  if (watched->state == PredictorState::kOn) {
    if (watched->num_batches < options_.min_batches || !ClearlyWorse(own, yardstick)) return;
    report("off", "above 9/8 of");
    MoveTo(PredictorState::kOff, watched);
  } else if (watched->state == PredictorState::kTrial && watched->num_batches >= options_.trial_batches) {
    if (ClearlyBetter(own, yardstick)) {
      report("on again", "below 15/16 of");
      watched->wait_batches = options_.wait_batches;
      MoveTo(PredictorState::kOn, watched);
    } else {
      watched->wait_batches = std::min(2 * watched->wait_batches, options_.max_wait_batches);
      MoveTo(PredictorState::kOff, watched);
    }
  }
}

void PredictorMonitor::Add(int layer, absl::Span<const int64_t> distances) {
  SY_CHECK_EQ(distances.size(), names_.size());
  if (distances[0] == kNoEstimate) return;
  Layer& at = layers_[static_cast<size_t>(layer)];
  for (size_t j = 0; j < names_.size(); ++j) {
    Watched& watched = at.estimators[j];
    if (watched.state == PredictorState::kOff) {
      if (++watched.num_batches >= watched.wait_batches) MoveTo(PredictorState::kTrial, &watched);
      continue;
    }
    if (distances[j] == kNoEstimate) continue;
    ++watched.num_batches;
    watched.own.Add(distances[j]);
    watched.yardstick.Add(distances[0]);
    Judge(layer, j, &watched);
  }
  Choose(&at);
}

void PredictorMonitor::Choose(Layer* layer) {
  const auto may_decide = [&](size_t j) {
    const Watched& watched = layer->estimators[j];
    return watched.state == PredictorState::kOn && watched.num_batches >= options_.min_batches;
  };
  auto best = static_cast<size_t>(layer->best);
  if (!may_decide(best)) best = 0;
  for (size_t j = 0; j < names_.size(); ++j)
    if (may_decide(j) && ClearlyBetter(layer->estimators[j].own.Mean(), layer->estimators[best].own.Mean())) best = j;
  layer->best = static_cast<int>(best);
}

std::vector<std::string> PredictorMonitor::TakeReports() { return std::exchange(reports_, {}); }

}  // namespace switchyard::popularity
