#include "scheduler/popularity/trace/trace_profile.h"

#include <utility>
#include <vector>

#include "scheduler/base/status_macros.h"
#include "scheduler/popularity/predictors/live_estimates.h"

namespace switchyard::popularity {
namespace {

// [T, M] of tokens [begin, end) in a layer.
std::vector<int16_t> PredictionsOf(const RoutingTrace& trace, const TraceSequence& sequence, size_t channel, int layer,
                                   int64_t begin, int64_t end) {
  const int64_t width = trace.channels[channel].num_predicted, layers = trace.shape.num_layers;
  std::vector<int16_t> predictions;
  for (int64_t t = begin; t < end; ++t) {
    const auto from = sequence.predictions[channel].begin() + (t * layers + layer) * width;
    predictions.insert(predictions.end(), from, from + width);
  }
  return predictions;
}

// The trace's channel that the profile is of, or -1.
int FindChannel(const RoutingTrace& trace, const ProfileIdentity& identity) {
  for (size_t c = 0; c < trace.channels.size(); ++c) {
    const bool long_enough = trace.channels[c].num_predicted >= identity.path_length;
    if (trace.channels[c].name == identity.channel && long_enough) return static_cast<int>(c);
  }
  return -1;
}

void CountPhase(const RoutingTrace& trace, PathProfile* profile) {
  const bool decode = profile->identity().phase == Phase::kDecode;
  const bool predicted = profile->identity().context == ContextKind::kPredicted;
  const int channel = predicted ? FindChannel(trace, profile->identity()) : -1;
  if (predicted && channel < 0) return;
  for (const TraceSequence& sequence : trace.sequences) {
    const int64_t begin = decode ? sequence.num_prompt : 0, end = decode ? sequence.num_tokens() : sequence.num_prompt;
    const RoutingView view = ViewOf(trace, sequence, begin, end);
    for (int layer = 0; layer < trace.shape.num_layers; ++layer) {
      profile->Observe(view, layer,
                       predicted ? PredictionsOf(trace, sequence, static_cast<size_t>(channel), layer, begin, end)
                                 : std::vector<int16_t>());
    }
  }
}

}  // namespace

absl::StatusOr<ProfileBundle> CountTrace(const RoutingTrace& trace, int path_length) {
  ProfileBundle bundle;
  bundle.model = trace.model;
  bundle.shape = trace.shape;
  for (const Phase phase : kPhases) {
    LiveOptions options;
    options.model = trace.model;
    options.shape = trace.shape;
    options.phase = phase;
    options.path_length = path_length;
    for (ProfileIdentity& identity : LiveProfiles(options)) {
      const ProfileLimits limits = LiveLimits(options, identity.context);
      RETURN_IF_ERROR(CheckProfile(identity, limits));
      PathProfile profile(std::move(identity), limits);
      CountPhase(trace, &profile);
      if (profile.num_tokens(0) > 0) bundle.profiles.push_back(std::move(profile));
    }
  }
  return bundle;
}

}  // namespace switchyard::popularity
