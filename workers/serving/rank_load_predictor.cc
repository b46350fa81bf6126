#include "workers/serving/rank_load_predictor.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::worker {
namespace {

// The share of a step's time for fitting probes while serving: too little to be noticed.
constexpr double kProbeShare = 0.02;

}  // namespace

absl::Status CheckForecastOptions(const ForecastOptions& options) {
  if (options.when != "auto" && options.when != "always" && options.when != "never") {
    return absl::InvalidArgumentError(absl::StrCat("--forecast=", options.when, ": must be auto, always or never"));
  }
  if (options.when == "never" && !(options.profile.empty() && options.profile_out.empty())) {
    return absl::InvalidArgumentError(
        "--forecast=never: nothing is learned then, but a --profile or --profile_out is named");
  }
  if (options.path_length < 1 || options.path_length > popularity::kMaxPathLength) {
    return absl::InvalidArgumentError(
        absl::StrCat("--path_length=", options.path_length, ": must be within [1, ", popularity::kMaxPathLength, "]"));
  }
  if (options.profile_out.empty()) return absl::OkStatus();
  // Checks the folder now, not when all has been learned.
  const std::string::size_type slash = options.profile_out.rfind('/');
  const std::string dir = slash == std::string::npos ? "." : options.profile_out.substr(0, slash + 1);
  if (access(dir.c_str(), W_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--profile_out=", options.profile_out, ": ", dir, ": ", std::strerror(errno)));
}

absl::StatusOr<popularity::ProfileBundle> ReadProfile(const ForecastOptions& options, const std::string& weights_hash) {
  const std::string& path = options.profile;
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("--profile=", path, ": ", why));
  };
  if (!file) return refuse(absl::StrCat("cannot be read: ", std::strerror(errno)));
  absl::StatusOr<popularity::ProfileBundle> bundle = popularity::ProfileBundle::Parse(bytes.str());
  if (!bundle.ok()) return refuse(bundle.status().message());
  if (bundle->model != weights_hash)
    return refuse(absl::StrCat("it is of the weights ", bundle->model, ", the model's are ", weights_hash));
  for (const popularity::PathProfile& profile : bundle->profiles) {
    const int length = profile.identity().path_length;
    if (profile.identity().context != popularity::ContextKind::kPath || length == options.path_length) continue;
    return refuse(absl::StrCat("its paths are of ", length, " layers, --path_length=", options.path_length));
  }
  return bundle;
}

absl::Status SaveProfile(const Stream& stream, const moe::RowLoadPredictor& load_predictor, int rank,
                         const std::string& path) {
  const absl::StatusOr<moe::Learned> learned = load_predictor.Collect(stream);
  if (!learned.ok())
    return absl::InvalidArgumentError(absl::StrCat("--profile_out=", path, ": ", learned.status().message()));
  const popularity::ProfileBundle& bundle = rank == 0 ? learned->all : learned->own;
  const std::string beside = absl::StrCat(path, ".", getpid(), ".tmp");
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << bundle.Serialize();
  file.close();
  if (!file || std::rename(beside.c_str(), path.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    std::remove(beside.c_str());
    return absl::InvalidArgumentError(absl::StrCat("--profile_out=", path, ": cannot be written: ", why));
  }
  LogInfo("forecast: ", bundle.profiles.size(), " profiles and ", bundle.maps.size(), " probe maps in ", path);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<moe::RowLoadPredictor>> MakeRankLoadPredictor(const Stream& stream,
                                                                             const ForecastedModel& forecasted,
                                                                             const ForecastOptions& options) {
  const model::Model& model = *forecasted.model;
  const model::ModelConfig& config = model.config();
  moe::RowLoadPredictorOptions made;
  made.model = forecasted.weights_hash;
  made.shape = {.num_layers = static_cast<int>(config.num_moe_layers()),
                .num_experts = static_cast<int>(config.num_experts),
                .top_k = static_cast<int>(config.top_k)};
  for (const model::LayerWeights& layer : model.weights().layers) {
    if (layer.moe.has_value()) made.routers.push_back(&layer.moe->router);
  }
  made.path_length = options.path_length;
  made.hidden = config.hidden;
  made.dtype = model.dtype();
  made.probe_share = options.profile_out.empty() ? kProbeShare : 1;
  made.keeps_own = !options.profile_out.empty();
  made.paper_estimate = placement::IsPaper(forecasted.placement);
  for (const popularity::ProfileIdentity& identity :
       popularity::LiveProfiles(moe::RowLoadPredictor::LiveOptionsOf(made, popularity::Phase::kPrefill))) {
    RETURN_IF_ERROR(popularity::CheckProfile(
        identity, popularity::LiveLimits(moe::RowLoadPredictor::LiveOptionsOf(made, popularity::Phase::kPrefill),
                                         identity.context)));
  }
  // While serving the sums are small (ProbeFit::kMaxBytes); a profiling run takes what they need.
  if (const int64_t bytes = moe::RowLoadPredictor::FitBytesOf(made);
      !options.profile_out.empty() && bytes > forecasted.available_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("--profile_out=", options.profile_out, ": fitting probes takes ",
                                                     bytes, " bytes of memory, ", forecasted.available_bytes,
                                                     " are free"));
  }
  auto load_predictor = std::make_unique<moe::RowLoadPredictor>(std::move(made));
  if (options.profile.empty()) return load_predictor;
  ASSIGN_OR_RETURN(popularity::ProfileBundle bundle, ReadProfile(options, forecasted.weights_hash));
  LogInfo("forecast: ", bundle.profiles.size(), " profiles and ", bundle.maps.size(), " probe maps from ",
          options.profile);
  RETURN_IF_ERROR(load_predictor->Load(stream, {.all = std::move(bundle)}));
  return load_predictor;
}

}  // namespace switchyard::worker
