#include "scheduler/popularity/predictors/live_estimates.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::popularity {
namespace {

using E = LivePredictor;

size_t Index(LivePredictor estimator) { return static_cast<size_t>(estimator); }
size_t Index(Predictor predictor) { return static_cast<size_t>(predictor); }

std::vector<std::string> AllNames() {
  std::vector<std::string> names;
  for (int j = 0; j < kNumLivePredictors; ++j) names.emplace_back(NameOf(static_cast<LivePredictor>(j)));
  return names;
}

std::vector<PathProfile> MakeProfiles(const LiveOptions& options) {
  std::vector<PathProfile> profiles;
  for (ProfileIdentity& identity : LiveProfiles(options)) {
    const ProfileLimits limits = LiveLimits(options, identity.context);
    profiles.emplace_back(std::move(identity), limits);
  }
  return profiles;
}

// Into the one of the same phase, context and channel.
absl::Status MergeInto(std::vector<PathProfile>* profiles, const PathProfile& counted) {
  const ProfileIdentity& other = counted.identity();
  for (PathProfile& profile : *profiles) {
    const ProfileIdentity& own = profile.identity();
    if (own.phase != other.phase || own.context != other.context || own.channel != other.channel) continue;
    return profile.Merge(counted);
  }
  return absl::InvalidArgumentError(absl::StrCat("path profile: no estimator reads ", NameOf(other.phase), " ",
                                                 NameOf(other.context), " ", other.channel));
}

}  // namespace

LiveEstimates::LiveEstimates(LiveOptions options)
    : options_(std::move(options)),
      profiles_(MakeProfiles(options_)),
      marginal_(&profiles_[0], {.name = "marginal", .max_length = 0}),
      path_(&profiles_[0],
            {.name = "path", .max_length = options_.path_length, .mask_to_top_k = options_.paper_estimate}),
      token_(&profiles_[1], {.name = "token", .max_length = 1}),
      last_batch_(options_.shape) {
  SY_CHECK(options_.num_predicted >= 1 && options_.num_predicted <= options_.shape.num_experts);
  SY_CHECK(options_.full_every >= 1 && options_.counted_rows >= 1);
  for (int ahead = 1; ahead <= kMaxAhead; ++ahead) MakeDistance(ahead);
}

void LiveEstimates::MakeDistance(int ahead) {
  const auto layers = static_cast<size_t>(options_.shape.num_layers);
  Distance& distance = at(ahead);
  for (int p = 0; p < kNumPredictors; ++p) {
    const auto predictor = static_cast<Predictor>(p);
    const std::string channel = ChannelOf(predictor, ahead);
    distance.said[p] = std::make_unique<ObservedPredictor>(channel, options_.shape);
    auto own = std::make_unique<ObservedPredictor>(channel, options_.shape);
    distance.calibrated_said[p] = own.get();
    distance.calibrated[p] =
        std::make_unique<CalibratedPredictor>(std::move(own), &profiles_[ProfileOf(predictor, ahead)]);
  }
  std::vector<std::unique_ptr<LoadPredictor>> inner;
  for (const LivePredictor estimator : kBlended) {
    auto reported = std::make_unique<ObservedPredictor>(std::string(NameOf(estimator)), options_.shape);
    distance.blended.push_back(reported.get());
    inner.push_back(std::move(reported));
  }
  distance.blend = std::make_unique<BlendPredictor>(std::move(inner), options_.shape);
  distance.path_error.assign(layers, ShareCorrection(options_.shape.num_experts));
  distance.probe_error = distance.path_error;
  distance.kept.resize(layers);
  distance.scores.resize(layers);
  distance.monitor = std::make_unique<PredictorMonitor>(AllNames(), options_.shape.num_layers, options_.monitor);
}

void LiveEstimates::BeginPass() {
  full_ = num_passes_ < options_.first_full_passes || num_passes_ % options_.full_every == 0;
  ++num_passes_;
  // What a pass that ended early has left.
  for (int ahead = 1; ahead <= kMaxAhead; ++ahead) {
    for (int layer = 0; layer < options_.shape.num_layers; ++layer) Forget(layer, ahead);
  }
}

void LiveEstimates::Forget(int layer, int ahead) {
  Distance& distance = at(ahead);
  for (Popularity& estimate : distance.kept[static_cast<size_t>(layer)]) estimate.clear();
  for (size_t p = 0; p < kNumPredictors; ++p) {
    distance.said[p]->Observe({}, layer);
    distance.calibrated[p]->Observe({}, layer);
  }
  for (ObservedPredictor* reported : distance.blended) reported->Observe({}, layer);
}

LivePredictor LiveEstimates::Best(int layer, int ahead) const {
  if (options_.paper_estimate) return E::kPath;
  return static_cast<LivePredictor>(at(ahead).monitor->Best(layer));
}
PredictorState LiveEstimates::StateOf(LivePredictor estimator, int layer, int ahead) const {
  return at(ahead).monitor->StateOf(layer, static_cast<int>(estimator));
}
OffVerdict LiveEstimates::LastOff(LivePredictor estimator, int layer, int ahead) const {
  return at(ahead).monitor->LastOff(layer, static_cast<int>(estimator));
}
const EstimateScore& LiveEstimates::score(LivePredictor estimator, int layer, int ahead) const {
  return at(ahead).scores[static_cast<size_t>(layer)][Index(estimator)];
}

int LiveEstimates::NumOff(LivePredictor estimator, int ahead) const {
  int off = 0;
  for (int layer = 0; layer < options_.shape.num_layers; ++layer)
    off += StateOf(estimator, layer, ahead) != PredictorState::kOn;
  return off;
}

EstimateMeans LiveEstimates::MeansOf(LivePredictor estimator, int ahead) const {
  EstimateMeans means;
  for (const auto& of_layer : at(ahead).scores) {
    const EstimateScore& score = of_layer[Index(estimator)];
    if (score.num_batches() == 0) continue;
    ++means.num_layers;
    means.accuracy += score.accuracy();
    means.distance += score.distance();
  }
  if (means.num_layers == 0) return means;
  means.accuracy /= means.num_layers;
  means.distance /= means.num_layers;
  return means;
}

uint32_t LiveEstimates::Asked(int layer, int ahead) const {
  // Marginal is the yardstick, and the answer where the best one has none.
  uint32_t asked = BitOf(E::kMarginal) | NeededBy(Best(layer, ahead));
  if (!full_) return asked;
  for (int j = 0; j < kNumLivePredictors; ++j)
    if (at(ahead).monitor->Wants(layer, j)) asked |= NeededBy(static_cast<LivePredictor>(j));
  return asked;
}

bool LiveEstimates::Wants(Predictor predictor, int layer, int ahead) const {
  return (Asked(layer, ahead) & ReadersOf(predictor)) != 0;
}

void LiveEstimates::SetPredictions(Predictor predictor, int layer, int ahead, absl::Span<const int16_t> predictions) {
  Distance& distance = at(ahead);
  distance.said[Index(predictor)]->SetPredictions(layer, options_.num_predicted, predictions);
  distance.calibrated_said[Index(predictor)]->SetPredictions(layer, options_.num_predicted, predictions);
}

Popularity LiveEstimates::Ask(LivePredictor estimator, const RoutingView& batch, int layer, int ahead) {
  Distance& distance = at(ahead);
  const auto l = static_cast<size_t>(layer);
  const auto corrected = [&](LivePredictor inner, const std::vector<ShareCorrection>& errors) {
    Popularity estimate = distance.kept[l][Index(inner)];
    if (!estimate.empty()) errors[l].Apply(absl::MakeSpan(estimate));
    return estimate;
  };
  const auto of = [&](const LoadPredictor& asked) {
    Popularity estimate(static_cast<size_t>(options_.shape.num_experts));
    if (!asked.Estimate(batch, layer, absl::MakeSpan(estimate))) estimate.clear();
    return estimate;
  };
  switch (estimator) {
    case E::kMarginal:
      return of(marginal_);
    case E::kLastBatch:
      return of(last_batch_);
    case E::kPath:  // of the layers before, which two ahead are not known
      return ahead == 1 ? of(path_) : Popularity();
    case E::kPathCorrected:
      return corrected(E::kPath, distance.path_error);
    case E::kToken:
      return of(token_);
    case E::kGateAhead:
      return of(*distance.said[Index(Predictor::kGateAhead)]);
    case E::kGateAheadCalibrated:
      return of(*distance.calibrated[Index(Predictor::kGateAhead)]);
    case E::kProbe:
      return of(*distance.said[Index(Predictor::kProbe)]);
    case E::kProbeCalibrated:
      return of(*distance.calibrated[Index(Predictor::kProbe)]);
    case E::kProbeCorrected:
      return corrected(E::kProbeCalibrated, distance.probe_error);
    case E::kBlend:
      for (size_t i = 0; i < kBlended.size(); ++i) {
        const Popularity& reported = distance.kept[l][Index(kBlended[i])];
        if (!reported.empty()) distance.blended[i]->SetCounts(layer, reported);
      }
      return of(*distance.blend);
  }
  return {};
}

bool LiveEstimates::Estimate(const RoutingView& batch, int layer, int ahead, absl::Span<int64_t> popularity) {
  if (batch.num_tokens == 0) return false;
  std::array<Popularity, kNumLivePredictors>& kept = at(ahead).kept[static_cast<size_t>(layer)];
  const uint32_t asked = Asked(layer, ahead);
  for (int j = 0; j < kNumLivePredictors; ++j) {
    const auto estimator = static_cast<LivePredictor>(j);
    kept[Index(estimator)] = (asked & BitOf(estimator)) != 0 ? Ask(estimator, batch, layer, ahead) : Popularity();
  }
  const Popularity& best = kept[Index(Best(layer, ahead))];
  const Popularity& answer = best.empty() ? kept[Index(E::kMarginal)] : best;
  if (answer.empty()) return false;
  for (size_t e = 0; e < answer.size(); ++e) popularity[e] += answer[e];
  return true;
}

void LiveEstimates::Finalize(const RoutingView& batch, int layer, int ahead, const Popularity& actual) {
  Distance& distance = at(ahead);
  const auto l = static_cast<size_t>(layer);
  std::array<Popularity, kNumLivePredictors>& kept = distance.kept[l];
  std::array<int64_t, kNumLivePredictors> distances;
  for (size_t j = 0; j < kept.size(); ++j) {
    distances[j] = kept[j].empty() ? PredictorMonitor::kNoEstimate : DistanceOf(kept[j], actual);
    if (full_ && !kept[j].empty()) distance.scores[l][j].Add(kept[j], actual, options_.shape.top_k);
  }
  if (full_) distance.monitor->Add(layer, distances);
  const int64_t rows = TotalOf(actual);
  const auto correct = [&](LivePredictor inner, std::vector<ShareCorrection>* errors) {
    const Popularity& estimate = kept[Index(inner)];
    if (!estimate.empty()) (*errors)[l].Update(estimate, actual, rows);
  };
  correct(E::kPath, &distance.path_error);
  correct(E::kProbeCalibrated, &distance.probe_error);
  distance.blend->Observe(batch, layer);
}

void LiveEstimates::Count(const RoutingView& batch, int layer) {
  const int64_t count = std::min(batch.num_tokens, options_.counted_rows);
  // Another window of a long pass each time, all over it (Fibonacci hashing).
  const auto scattered = static_cast<int64_t>(static_cast<uint64_t>(num_passes_) * 0x9E3779B97F4A7C15u >> 33);
  const int64_t begin = scattered % (batch.num_tokens - count + 1);
  const RoutingView rows = TokensOf(batch, begin, count);
  const auto observe = [&](size_t profile, absl::Span<const int16_t> predicted) {
    profiles_[profile].Observe(rows, layer, predicted);
    if (!own_.empty()) own_[profile].Observe(rows, layer, predicted);
  };
  observe(0, {});
  if (batch.token_ids != nullptr) observe(1, {});
  for (int ahead = 1; ahead <= kMaxAhead; ++ahead) {
    for (size_t p = 0; p < kNumPredictors; ++p) {
      const absl::Span<const int16_t> said = at(ahead).said[p]->predictions(layer);
      if (said.empty()) continue;
      const auto width = static_cast<size_t>(options_.num_predicted);
      observe(ProfileOf(static_cast<Predictor>(p), ahead),
              said.subspan(static_cast<size_t>(begin) * width, static_cast<size_t>(count) * width));
    }
  }
}

void LiveEstimates::Observe(const RoutingView& batch, int layer) {
  if (batch.num_tokens == 0) return;
  const Popularity actual = CountsOf(batch, layer);
  Count(batch, layer);
  for (int ahead = 1; ahead <= kMaxAhead; ++ahead) {
    Finalize(batch, layer, ahead, actual);
    Forget(layer, ahead);
  }
  last_batch_.Observe(batch, layer);
}

std::vector<std::string> LiveEstimates::TakeReports() {
  std::vector<std::string> reports;
  for (int ahead = 1; ahead <= kMaxAhead; ++ahead) {
    for (const std::string& report : at(ahead).monitor->TakeReports())
      reports.push_back(absl::StrCat(NameOf(options_.phase), ", ", ahead, " ahead: ", report));
  }
  return reports;
}

absl::Status LiveEstimates::Restore(const PathProfile& counted) {
  if (options_.keeps_own && own_.empty()) own_ = profiles_;
  return MergeInto(&profiles_, counted);
}

absl::Status LiveEstimates::RestoreOwn(const PathProfile& counted) {
  return own_.empty() ? absl::OkStatus() : MergeInto(&own_, counted);
}

}  // namespace switchyard::popularity
