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

std::vector<PathProfile> MakeProfiles(const LiveOptions& options) {
  std::vector<PathProfile> profiles;
  for (ProfileIdentity& identity : LiveProfiles(options)) {
    const ProfileLimits limits = LiveLimits(options, identity.context);
    profiles.emplace_back(std::move(identity), limits);
  }
  return profiles;
}

// Merges into the profile of the same phase, context and channel.
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
      marginal_(&profiles_[0], {.max_length = 0}),
      path_(&profiles_[0], {.max_length = options_.path_length, .mask_to_top_k = options_.paper_estimate}),
      token_(&profiles_[1], {.max_length = 1}) {
  SY_CHECK(options_.num_predicted >= 1 && options_.num_predicted <= options_.shape.num_experts);
  SY_CHECK(options_.full_every >= 1 && options_.counted_rows >= 1);
  distances_.reserve(kMaxAhead);
  for (int ahead = 1; ahead <= kMaxAhead; ++ahead) distances_.push_back(MakeDistance(ahead));
}

LiveEstimates::Distance LiveEstimates::MakeDistance(int ahead) const {
  const auto layers = static_cast<size_t>(options_.shape.num_layers);
  Distance distance = {.said = std::vector<ObservedPredictor>(kNumPredictors, ObservedPredictor(options_.shape)),
                       .calibrated = {},
                       .kept = std::vector<KeptEstimates>(layers),
                       .scores = std::vector<std::array<EstimateScore, kNumLivePredictors>>(layers),
                       .best = BestPredictor(options_.shape.num_layers, kNumLivePredictors)};
  for (int p = 0; p < kNumPredictors; ++p) {
    distance.calibrated.emplace_back(&distance.said[static_cast<size_t>(p)],
                                     &profiles_[ProfileOf(static_cast<Predictor>(p), ahead)]);
  }
  return distance;
}

void LiveEstimates::BeginPass() {
  full_ = num_passes_ < options_.first_full_passes || num_passes_ % options_.full_every == 0;
  ++num_passes_;
  // A pass that ended early leaves predictions behind.
  for (int ahead = 1; ahead <= kMaxAhead; ++ahead) {
    for (int layer = 0; layer < options_.shape.num_layers; ++layer) Forget(layer, ahead);
  }
}

void LiveEstimates::Forget(int layer, int ahead) {
  Distance& distance = at(ahead);
  for (Popularity& estimate : distance.kept[static_cast<size_t>(layer)]) estimate.clear();
  for (ObservedPredictor& said : distance.said) said.Clear(layer);
}

LivePredictor LiveEstimates::Best(int layer, int ahead) const {
  if (options_.paper_estimate) return E::kPath;
  return static_cast<LivePredictor>(at(ahead).best.Of(layer));
}
const EstimateScore& LiveEstimates::score(LivePredictor estimator, int layer, int ahead) const {
  return at(ahead).scores[static_cast<size_t>(layer)][Index(estimator)];
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

bool LiveEstimates::Asks(LivePredictor estimator, int layer, int ahead) const {
  // Marginal is the yardstick, and the answer where the best estimator has none.
  return full_ || estimator == E::kMarginal || estimator == Best(layer, ahead);
}

bool LiveEstimates::Wants(Predictor predictor, int layer, int ahead) const {
  return Asks(ReaderOf(predictor), layer, ahead);
}

void LiveEstimates::SetPredictions(Predictor predictor, int layer, int ahead, absl::Span<const int16_t> predictions) {
  at(ahead).said[Index(predictor)].SetPredictions(layer, options_.num_predicted, predictions);
}

Popularity LiveEstimates::Ask(LivePredictor estimator, const RoutingView& batch, int layer, int ahead) const {
  switch (estimator) {
    case E::kMarginal:
      return marginal_.Estimate(batch, layer);
    case E::kPath:  // of the layers before, which two ahead are not known
      return ahead == 1 ? path_.Estimate(batch, layer) : Popularity();
    case E::kToken:
      return token_.Estimate(batch, layer);
    case E::kGateAhead:
      return at(ahead).calibrated[Index(Predictor::kGateAhead)].Estimate(batch, layer);
    case E::kProbe:
      return at(ahead).calibrated[Index(Predictor::kProbe)].Estimate(batch, layer);
  }
  return {};
}

bool LiveEstimates::Estimate(const RoutingView& batch, int layer, int ahead, absl::Span<int64_t> popularity) {
  if (batch.num_tokens == 0) return false;
  KeptEstimates& kept = at(ahead).kept[static_cast<size_t>(layer)];
  for (int j = 0; j < kNumLivePredictors; ++j) {
    const auto estimator = static_cast<LivePredictor>(j);
    kept[Index(estimator)] = Asks(estimator, layer, ahead) ? Ask(estimator, batch, layer, ahead) : Popularity();
  }
  const Popularity& best = kept[Index(Best(layer, ahead))];
  const Popularity& answer = best.empty() ? kept[Index(E::kMarginal)] : best;
  if (answer.empty()) return false;
  for (size_t e = 0; e < answer.size(); ++e) popularity[e] += answer[e];
  return true;
}

void LiveEstimates::Finalize(int layer, int ahead, const Popularity& actual) {
  Distance& distance = at(ahead);
  const auto l = static_cast<size_t>(layer);
  const KeptEstimates& kept = distance.kept[l];
  std::array<int64_t, kNumLivePredictors> distances;
  for (size_t j = 0; j < kept.size(); ++j) {
    distances[j] = kept[j].empty() ? BestPredictor::kNoEstimate : DistanceOf(kept[j], actual);
    if (full_ && !kept[j].empty()) distance.scores[l][j].Add(kept[j], actual, options_.shape.top_k);
  }
  if (full_) distance.best.Add(layer, distances);
}

void LiveEstimates::Count(const RoutingView& batch, int layer) {
  const int64_t count = std::min(batch.num_tokens, options_.counted_rows);
  // Each pass another window of the rows, all over them (Fibonacci hashing).
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
      const absl::Span<const int16_t> said = at(ahead).said[p].predictions(layer);
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
    Finalize(layer, ahead, actual);
    Forget(layer, ahead);
  }
}

absl::Status LiveEstimates::Restore(const PathProfile& counted) {
  if (options_.keeps_own && own_.empty()) own_ = profiles_;
  return MergeInto(&profiles_, counted);
}

absl::Status LiveEstimates::RestoreOwn(const PathProfile& counted) {
  return own_.empty() ? absl::OkStatus() : MergeInto(&own_, counted);
}

}  // namespace switchyard::popularity
