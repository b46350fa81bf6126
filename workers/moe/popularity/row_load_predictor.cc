#include "workers/moe/popularity/row_load_predictor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kMostPredicted = 16;

// How many experts are predicted of each token: as many as it takes, and as many more that may be chosen.
int NumPredicted(const popularity::RoutingShape& shape) {
  const int64_t wanted = std::max(int64_t{2} * shape.top_k, int64_t{4});
  return static_cast<int>(
      std::min({wanted, std::max<int64_t>(shape.top_k, kMostPredicted), int64_t{shape.num_experts}}));
}

ProbeFitOptions FitOptionsOf(const RowLoadPredictorOptions& options) {
  return {.num_layers = options.shape.num_layers,
          .num_experts = options.shape.num_experts,
          .hidden = options.hidden,
          .share = options.probe_share};
}

// The map as it is run.
absl::StatusOr<ForecastMap> MakeMap(const Stream& stream, const popularity::ProbeMap& map,
                                    const RowLoadPredictorOptions& options) {
  Tensor wide(DType::kF64, {options.shape.num_experts, options.hidden + 1});
  std::copy(map.values.begin(), map.values.end(), wide.view().data<double>());
  return MakeForecastMap(stream, wide, options.dtype);
}

// Whether the sums are small enough for fitting while serving; a profiling run has no limit here.
bool HasRoom(const ProbeFitOptions& fit) { return fit.share >= 1 || ProbeFit::BytesOf(fit) <= ProbeFit::kMaxBytes; }

}  // namespace

size_t RowLoadPredictor::IndexOf(const popularity::ProbeMap& map) {
  return static_cast<size_t>(map.layer * popularity::kMaxAhead + map.ahead - 1);
}

popularity::LiveOptions RowLoadPredictor::LiveOptionsOf(const RowLoadPredictorOptions& options,
                                                        popularity::Phase phase) {
  return {.model = options.model,
          .shape = options.shape,
          .phase = phase,
          .path_length = options.path_length,
          .num_predicted = NumPredicted(options.shape),
          .profile_bytes = options.profile_bytes,
          .keeps_own = true,
          .paper_estimate = options.paper_estimate};
}

int64_t RowLoadPredictor::FitBytesOf(const RowLoadPredictorOptions& options) {
  if (options.probe_share <= 0 || options.shape.num_layers < 2) return 0;
  const ProbeFitOptions fit = FitOptionsOf(options);
  return HasRoom(fit) ? ProbeFit::BytesOf(fit) + ProbeFit::SolvingBytesOf(fit) : 0;
}

RowLoadPredictor::RowLoadPredictor(RowLoadPredictorOptions options)
    : options_(std::move(options)),
      num_predicted_(NumPredicted(options_.shape)),
      probes_(static_cast<size_t>(options_.shape.num_layers * popularity::kMaxAhead)) {
  SY_CHECK_EQ(static_cast<int>(options_.routers.size()), options_.shape.num_layers);
  live_.reserve(std::size(popularity::kPhases));
  for (const popularity::Phase phase : popularity::kPhases) live_.emplace_back(LiveOptionsOf(options_, phase));
  for (popularity::Popularity& popularity : popularity_)
    popularity.resize(static_cast<size_t>(options_.shape.num_experts));
  if (options_.probe_share <= 0 || options_.shape.num_layers < 2) return;
  const ProbeFitOptions fit = FitOptionsOf(options_);
  if (!HasRoom(fit)) {
    LogInfo("forecast: no probe is fitted while serving: its sums would take ", ProbeFit::BytesOf(fit) >> 20,
            " MiB, limit ", ProbeFit::kMaxBytes >> 20);
    return;
  }
  fit_ = std::make_unique<ProbeFit>(fit);
}

popularity::ProfileBundle RowLoadPredictor::EmptyBundle() const {
  return {.model = options_.model,
          .shape = options_.shape,
          .hidden = static_cast<int>(options_.hidden),
          .profiles = {},
          .maps = {}};
}

absl::Status RowLoadPredictor::Load(const Stream& stream, Learned learned) {
  RETURN_IF_ERROR(popularity::CheckSameModel(EmptyBundle(), learned.all));
  for (const popularity::PathProfile& profile : learned.all.profiles)
    RETURN_IF_ERROR(mutable_phase(profile.identity().phase)->Restore(profile));
  for (const popularity::PathProfile& profile : learned.own.profiles)
    RETURN_IF_ERROR(mutable_phase(profile.identity().phase)->RestoreOwn(profile));
  for (const popularity::ProbeMap& map : learned.all.maps) RETURN_IF_ERROR(SetProbe(stream, map));
  if (!options_.keeps_own) {
    // learned.all has them, too, as Collect fills it.
    for (const popularity::ProbeMap& map : learned.own.maps) probes_[IndexOf(map)]->fitted = true;
    return absl::OkStatus();
  }
  loaded_maps_ = std::move(learned.all.maps);
  loaded_own_maps_ = std::move(learned.own.maps);
  return absl::OkStatus();
}

absl::StatusOr<Learned> RowLoadPredictor::Collect(const Stream& stream) const {
  Learned learned = {.all = EmptyBundle(), .own = EmptyBundle()};
  for (const popularity::Phase phase : popularity::kPhases) {
    for (const popularity::PathProfile& profile : this->phase(phase).profiles())
      learned.all.profiles.push_back(profile);
    for (const popularity::PathProfile& profile : this->phase(phase).own_profiles())
      learned.own.profiles.push_back(profile);
  }
  if (!options_.keeps_own) {
    for (const std::optional<Probe>& probe : probes_) {
      if (!probe.has_value()) continue;
      learned.all.maps.push_back(probe->source);
      if (probe->fitted) learned.own.maps.push_back(probe->source);
    }
    return learned;
  }
  popularity::ProfileBundle fitted = EmptyBundle();
  if (fit_ != nullptr) fitted.maps = fit_->SolveNow(stream);
  learned.all.maps = loaded_maps_;
  learned.own.maps = loaded_own_maps_;
  RETURN_IF_ERROR(learned.all.Merge(fitted));
  RETURN_IF_ERROR(learned.own.Merge(fitted));
  return learned;
}

int RowLoadPredictor::num_pieces() const {
  int pieces = 1;
  for (const popularity::Phase phase : popularity::kPhases)
    pieces += static_cast<int>(this->phase(phase).profiles().size());
  return pieces;
}

void RowLoadPredictor::AddPiece(int piece, bool own, popularity::ProfileBundle* bundle) const {
  auto at = static_cast<size_t>(piece);
  for (const popularity::Phase phase : popularity::kPhases) {
    const popularity::LiveEstimates& live = this->phase(phase);
    const std::vector<popularity::PathProfile>& profiles = own ? live.own_profiles() : live.profiles();
    if (at < profiles.size()) return bundle->profiles.push_back(profiles[at]);
    at -= profiles.size();
  }
  for (const std::optional<Probe>& probe : probes_) {
    if (probe.has_value() && (probe->fitted || !own)) bundle->maps.push_back(probe->source);
  }
}

absl::Status RowLoadPredictor::SetProbe(const Stream& stream, popularity::ProbeMap map) {
  if (map.layer < 0 || map.ahead < 1 || map.ahead > popularity::kMaxAhead ||
      map.layer + map.ahead >= options_.shape.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("probe of MoE layer ", map.layer, " for ", map.ahead,
                                                   " ahead: the model has ", options_.shape.num_layers));
  }
  const int64_t experts = options_.shape.num_experts, width = options_.hidden + 1;
  if (static_cast<int64_t>(map.values.size()) != experts * width) {
    return absl::InvalidArgumentError(absl::StrCat("probe of MoE layer ", map.layer, ": ", map.values.size(),
                                                   " values, wants [", experts, ", ", width, "]"));
  }
  Probe probe;
  ASSIGN_OR_RETURN(probe.map, MakeMap(stream, map, options_));
  probe.source = std::move(map);
  const size_t index = IndexOf(probe.source);
  probes_[index] = std::move(probe);
  return absl::OkStatus();
}

absl::Status RowLoadPredictor::TakeFitted(const Stream& stream) {
  int64_t used = 0, rows = 0;
  for (popularity::ProbeMap& map : fit_->TakeSolved()) {
    const std::optional<Probe>& now = probes_[IndexOf(map)];
    if (now.has_value() && now->source.num_rows > map.num_rows) continue;
    rows = map.num_rows;
    const size_t index = IndexOf(map);
    RETURN_IF_ERROR(SetProbe(stream, std::move(map)));
    probes_[index]->fitted = true;
    ++used;
  }
  if (used > 0) LogInfo("forecast: ", used, " probe maps fitted on ", rows, " rows are used from now on");
  return absl::OkStatus();
}

popularity::RoutingView RowLoadPredictor::ViewOf(popularity::Phase phase) const {
  const bool decode = phase == popularity::Phase::kDecode;
  const int64_t begin = decode ? 0 : num_decode_rows_, k = options_.shape.top_k;
  return {.shape = options_.shape,
          .num_tokens = decode ? num_decode_rows_ : num_rows_ - num_decode_rows_,
          .token_ids = ids_known_[static_cast<size_t>(phase)] ? token_ids_.data() + begin : nullptr,
          .experts = experts_.data() + begin * k,
          .token_stride = k,
          .layer_stride = num_rows_ * k};
}

absl::StatusOr<absl::Span<const placement::LayerEstimate>> RowLoadPredictor::Begin(const ForecastPass& pass) {
  const comm::Timed spent(&spent_seconds_);
  SY_CHECK(0 <= pass.num_decode_rows && pass.num_decode_rows <= pass.num_rows);
  num_rows_ = pass.num_rows;
  num_decode_rows_ = pass.num_decode_rows;
  next_layer_ = 0;
  if (fit_ != nullptr && num_rows_ > 0) fit_->Begin(num_rows_, MonotonicNow());
  token_ids_.assign(pass.token_ids.begin(), pass.token_ids.end());
  experts_.assign(static_cast<size_t>(num_rows_ * options_.shape.num_layers * options_.shape.top_k), -1);
  const auto known = [&](int64_t begin, int64_t end) {
    return static_cast<int64_t>(token_ids_.size()) == num_rows_ &&
           std::all_of(token_ids_.begin() + begin, token_ids_.begin() + end, [](int32_t id) { return id >= 0; });
  };
  ids_known_ = {known(num_decode_rows_, num_rows_), known(0, num_decode_rows_)};
  for (const popularity::Phase phase : popularity::kPhases) {
    if (ViewOf(phase).num_tokens > 0) mutable_phase(phase)->BeginPass();
  }
  estimates_.clear();
  Estimate(0, 1);
  if (options_.shape.num_layers > 1) Estimate(1, 2);
  return estimates_;
}

absl::Status RowLoadPredictor::TakeChoices(const LayerContext& layer) {
  const int64_t k = options_.shape.top_k;
  if (layer.index != next_layer_ || layer.topk_on_host.rank() != 2 || layer.topk_on_host.dim(0) != num_rows_ ||
      layer.topk_on_host.dim(1) != k) {
    return absl::InternalError(absl::StrCat("load predictor: MoE layer ", layer.index, " chose ",
                                            layer.topk_on_host.ToString(), ", wants layer ", next_layer_, " and [",
                                            num_rows_, ", ", k, "]"));
  }
  if (num_rows_ > 0) {
    const int32_t* const chosen = layer.topk_on_host.data<int32_t>();
    int16_t* const to = experts_.data() + next_layer_ * num_rows_ * k;
    for (int64_t i = 0; i < num_rows_ * k; ++i) to[i] = static_cast<int16_t>(chosen[i]);
  }
  ++next_layer_;
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const placement::LayerEstimate>> RowLoadPredictor::OnGate(const MoeContext& context,
                                                                                    const LayerContext& layer) {
  const comm::Timed spent(&spent_seconds_);
  RETURN_IF_ERROR(TakeChoices(layer));
  RETURN_IF_ERROR(Fit(context, layer));
  for (const popularity::Phase phase : popularity::kPhases) mutable_phase(phase)->Observe(ViewOf(phase), layer.index);
  estimates_.clear();
  RETURN_IF_ERROR(Predict(context, layer));
  for (int ahead = 1; ahead <= popularity::kMaxAhead && layer.index + ahead < options_.shape.num_layers; ++ahead) {
    Estimate(layer.index + ahead, ahead);
  }
  return estimates_;
}

void RowLoadPredictor::Estimate(int layer, int ahead) {
  popularity::Popularity& popularity = popularity_[static_cast<size_t>(ahead - 1)];
  std::fill(popularity.begin(), popularity.end(), 0);
  for (const popularity::Phase phase : popularity::kPhases)
    mutable_phase(phase)->Estimate(ViewOf(phase), layer, ahead, absl::MakeSpan(popularity));
  const int64_t reported = popularity::TotalOf(popularity), all = num_rows_ * options_.shape.top_k * popularity::kRow;
  if (reported == 0) return;
  if (reported != all) popularity = popularity::ScaledTo(popularity, all);
  estimates_.push_back({.layer = layer, .popularity = popularity});
}

}  // namespace switchyard::moe
