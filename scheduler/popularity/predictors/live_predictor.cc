#include "scheduler/popularity/predictors/live_predictor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace switchyard::popularity {
namespace {

constexpr int kPredictedLength = 4;
// Divides the profiles' bytes: paths have half, token ids a quarter, each channel a sixteenth.
constexpr int64_t kShareOf[] = {2, 4, 16};

}  // namespace

absl::string_view NameOf(LivePredictor estimator) {
  constexpr absl::string_view kNames[kNumLivePredictors] = {"marginal", "path", "token", "gate_ahead", "probe"};
  return kNames[static_cast<size_t>(estimator)];
}

std::string ChannelOf(Predictor predictor, int ahead) {
  return absl::StrCat(predictor == Predictor::kProbe ? "probe" : "gate_ahead", ahead == 1 ? "" : absl::StrCat(ahead));
}

ProfileLimits LiveLimits(const LiveOptions& options, ContextKind context) {
  return {.max_bytes = options.profile_bytes / kShareOf[static_cast<size_t>(context)],
          .halve_after_tokens = options.halve_after_tokens};
}

std::vector<ProfileIdentity> LiveProfiles(const LiveOptions& options) {
  const ProfileIdentity path = {.model = options.model,
                                .shape = options.shape,
                                .phase = options.phase,
                                .path_length = options.path_length,
                                .num_choices = ChoicesFor(options.shape, LiveLimits(options, ContextKind::kPath))};
  std::vector<ProfileIdentity> identities = {path, path};
  identities[1].context = ContextKind::kToken;
  identities[1].path_length = identities[1].num_choices = 1;
  for (int ahead = 1; ahead <= kMaxAhead; ++ahead) {
    for (int p = 0; p < kNumPredictors; ++p) {
      ProfileIdentity channel = path;
      channel.context = ContextKind::kPredicted;
      channel.channel = ChannelOf(static_cast<Predictor>(p), ahead);
      channel.path_length = std::min(options.num_predicted, kPredictedLength);
      channel.num_choices = 1;
      identities.push_back(std::move(channel));
    }
  }
  return identities;
}

size_t ProfileOf(Predictor predictor, int ahead) {
  return 2 + static_cast<size_t>(ahead - 1) * kNumPredictors + static_cast<size_t>(predictor);
}

}  // namespace switchyard::popularity
