#include "workers/moe/popularity/probe_fit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/popularity/text_context.h"

namespace switchyard::moe {
namespace {

constexpr double kMostCredit = 0.05;    // seconds: cheap passes are not paid back by one long step
constexpr int64_t kLeastRows = 2048;    // before the first solution
constexpr int64_t kRowsPerFeature = 8;  // likewise, times H + 1; in context 2H + 1
constexpr int64_t kHiddenRows = 32;     // before a hidden layer, times 2H: it has as many times more to learn
constexpr int64_t kFirstRows = 4;       // to measure what a row costs
constexpr int64_t kRowsPerPass = 256;   // at most, where the share of the time is less than 1

void AppendValues(const Tensor& solved, std::vector<float>* values) {
  const TensorView view = solved;
  for (int64_t e = 0; e < view.dim(0); ++e) {
    const double* const row = view.row<double>(e);
    for (int64_t i = 0; i < view.dim(1); ++i) values->push_back(static_cast<float>(row[i]));
  }
}

// Adds the hidden layer beside the solved map, if there are rows enough and it is worth something.
void AddNetwork(const Stream& stream, const HiddenProbe& kept, const Tensor& solved, popularity::ProbeMap* map) {
  if (kept.num_rows() < kHiddenRows * (solved.view().dim(1) - 1)) return;
  const std::optional<HiddenLayer> layer = kept.Fit(stream, solved, {});
  if (!layer.has_value()) return;
  std::vector<float> network;
  AppendValues(layer->linear, &network);
  AppendValues(layer->out, &network);
  // Columns of very small numbers may make others too large for a float.
  if (!std::all_of(network.begin(), network.end(), [](float value) { return std::isfinite(value); })) return;
  map->num_units = layer->num_units;
  map->network = std::move(network);
}

// A copy of rows [begin, begin + count).
Tensor CopyRows(const TensorView& from, int64_t begin, int64_t count) {
  Tensor to(from.dtype(), {count, from.dim(1)});
  if (count > 0) std::memcpy(to.view().raw(), from.Rows(begin, count).raw(), static_cast<size_t>(to.bytes()));
  return to;
}

}  // namespace

int64_t ProbeFit::BytesOf(const ProbeFitOptions& options) {
  const auto of = [&](int64_t width) {
    return static_cast<int64_t>(sizeof(double)) * width * (width + 2 * options.num_experts) * options.num_layers;
  };
  if (!options.in_context) return of(options.hidden + 1);
  const int64_t kept = options.kept_rows * HiddenProbe::BytesOfRow(2 * options.hidden, options.num_experts);
  return of(options.hidden + 1) + of(2 * options.hidden + 1) + kept * options.num_layers;
}

int64_t ProbeFit::KeptRowsOf(ProbeFitOptions options) {
  if (!options.in_context || options.share < 1) return 0;
  options.kept_rows = 0;
  const int64_t width = 2 * options.hidden, left = kMaxProfilingBytes - BytesOf(options);
  const int64_t rows = left / (HiddenProbe::BytesOfRow(width, options.num_experts) * options.num_layers);
  return rows < kHiddenRows * width ? 0 : std::min(rows, kMostKept);
}

int64_t ProbeFit::SolvingBytesOf(const ProbeFitOptions& options) {
  ProbeFitOptions layer = options;
  layer.num_layers = 1;
  layer.hidden *= options.in_context ? 2 : 1;
  layer.in_context = false;
  // The map's error takes E numbers more of a kept row.
  const int64_t row = HiddenProbe::BytesOfRow(2 * options.hidden, 2 * options.num_experts);
  return 2 * BytesOf(layer) + (options.in_context ? options.kept_rows * row : 0);
}

bool ProbeFit::IsReady(const RidgeProbe& probe, bool in_context) {
  // A map in context takes the place of one that more rows may have made.
  return probe.num_rows() >= (in_context ? kRowsPerFeature : 1) * probe.num_features();
}

void ProbeFit::SolveLayer(const Stream& stream, const RidgeProbe& probe, const HiddenProbe* kept,
                          popularity::ProbeMap like, std::vector<popularity::ProbeMap>* maps) {
  like.num_rows = probe.num_rows();
  for (int target = 0; target < probe.num_targets(); ++target) {
    const absl::StatusOr<Tensor> solved = probe.Solve(stream, target);
    SY_CHECK_OK(solved.status());
    like.ahead = target + 1;
    maps->push_back(like);
    AppendValues(*solved, &maps->back().values);
    if (kept != nullptr && target == 0) AddNetwork(stream, *kept, *solved, &maps->back());
  }
}

std::vector<popularity::ProbeMap> ProbeFit::SolveNow(const Stream& stream) const {
  std::vector<popularity::ProbeMap> maps;
  for (const bool in_context : {false, true}) {
    for (int layer = 0; layer + 1 < options_.num_layers && (options_.in_context || !in_context); ++layer) {
      std::optional<RidgeProbe> probe;
      std::optional<HiddenProbe> kept;
      {
        absl::MutexLock lock(&sums_mu_);
        const RidgeProbe& now = (in_context ? sums_.in_context : sums_.alone)[static_cast<size_t>(layer)];
        if (IsReady(now, in_context)) probe.emplace(now);
        if (in_context && probe.has_value() && !sums_.kept.empty())
          kept.emplace(sums_.kept[static_cast<size_t>(layer)]);
      }
      if (!probe.has_value()) continue;
      SolveLayer(stream, *probe, kept.has_value() ? &*kept : nullptr,
                 {.layer = layer, .in_context = in_context, .values = {}}, &maps);
    }
  }
  return maps;
}

ProbeFit::ProbeFit(ProbeFitOptions options)
    : options_(options),
      seen_(static_cast<size_t>(options.num_layers)),
      solve_at_(std::max(kLeastRows, kRowsPerFeature * (options.hidden + 1))) {
  SY_CHECK(options_.num_layers >= 1 && options_.share > 0);
  for (int layer = 0; layer + 1 < options_.num_layers; ++layer) {
    sums_.alone.emplace_back(options_.hidden, options_.num_experts, num_targets(layer));
    if (!options_.in_context) continue;
    sums_.in_context.emplace_back(2 * options_.hidden, options_.num_experts, num_targets(layer));
    if (options_.kept_rows > 0) sums_.kept.emplace_back(2 * options_.hidden, options_.num_experts, options_.kept_rows);
  }
}

ProbeFit::~ProbeFit() {
  if (solver_.joinable()) solver_.join();
}

int ProbeFit::num_targets(int layer) const { return std::min(2, options_.num_layers - 1 - layer); }

void ProbeFit::Begin(int64_t num_rows, absl::Time now, absl::Span<const uint8_t> prompt_begins) {
  SY_CHECK_LE(static_cast<int64_t>(prompt_begins.size()), num_rows);
  prompt_begins_.assign(prompt_begins.begin(), prompt_begins.end());
  pass_begin_ = now;
  spent_ = 0;
  count_ = num_rows;
  if (options_.share < 1) {
    const int64_t allowed = seconds_per_row_ == 0 ? kFirstRows : static_cast<int64_t>(credit_ / seconds_per_row_);
    count_ = std::min({num_rows, kRowsPerPass, std::max<int64_t>(allowed, 0)});
  }
  // Each pass another window, all over the rows.
  const auto scattered = static_cast<int64_t>(SplitMix(static_cast<uint64_t>(++num_passes_)) >> 33);
  begin_ = scattered % (num_rows - count_ + 1);
  if (options_.num_layers < 2) count_ = 0;
  if (this->num_rows() >= solve_at_) StartSolving();
}

ProbeFit::Window ProbeFit::window() const {
  if (count_ == 0) return {};
  const int64_t first = options_.in_context ? std::max<int64_t>(0, begin_ - kContextReach) : begin_;
  return {.first = first, .count = begin_ + count_ - first};
}

absl::Status ProbeFit::OnGate(const Stream& stream, int layer, const TensorView& x, const TensorView& logits,
                              absl::Time now) {
  if (layer + 1 == options_.num_layers) {
    credit_ = std::min(kMostCredit, credit_ + options_.share * absl::ToDoubleSeconds(now - pass_begin_));
  }
  if (count_ == 0) return absl::OkStatus();
  const absl::Time start = absl::Now();
  seen_[static_cast<size_t>(layer)] = {CopyRows(x, begin_, count_), CopyRows(logits, begin_, count_), ContextOf(x)};
  if (layer >= 2) RETURN_IF_ERROR(AddRows(stream, layer - 2));
  const bool last = layer + 1 == options_.num_layers;
  if (last && layer >= 1) RETURN_IF_ERROR(AddRows(stream, layer - 1));
  spent_ += absl::ToDoubleSeconds(absl::Now() - start);
  if (!last || count_ == 0) return absl::OkStatus();
  const double per_row = spent_ / static_cast<double>(count_);
  seconds_per_row_ = seconds_per_row_ == 0 ? per_row : seconds_per_row_ + (per_row - seconds_per_row_) / 16;
  credit_ -= spent_;
  return absl::OkStatus();
}

// The features in context of the window's prompts' rows, which are its last.
Tensor ProbeFit::ContextOf(const TensorView& x) const {
  if (!options_.in_context) return Tensor();
  const auto prompts = static_cast<int64_t>(prompt_begins_.size());
  const int64_t first_prompt = x.dim(0) - prompts, first = std::max(begin_, first_prompt);
  const int64_t count = std::max<int64_t>(0, begin_ + count_ - first);
  return WithContext(x.Rows(first_prompt, prompts), prompt_begins_, std::min(first - first_prompt, prompts), count);
}

// Adds the layer's features with the logits of the layers after it.
absl::Status ProbeFit::AddRows(const Stream& stream, int layer) {
  std::vector<TensorView> targets;
  for (int ahead = 1; ahead <= num_targets(layer); ++ahead)
    targets.push_back(seen_[static_cast<size_t>(layer + ahead)].logits);
  const Seen& seen = seen_[static_cast<size_t>(layer)];
  const int64_t in_context = options_.in_context ? seen.context.view().dim(0) : 0;
  if (!AllFinite(seen.x) || (in_context > 0 && !AllFinite(seen.context)) ||
      !std::all_of(targets.begin(), targets.end(), AllFinite)) {
    count_ = 0;
    return absl::OkStatus();
  }
  absl::MutexLock lock(&sums_mu_);
  RETURN_IF_ERROR(sums_.alone[static_cast<size_t>(layer)].Add(stream, seen.x, targets));
  if (in_context == 0) return absl::OkStatus();
  for (TensorView& target : targets) target = target.Rows(target.dim(0) - in_context, in_context);
  RETURN_IF_ERROR(sums_.in_context[static_cast<size_t>(layer)].Add(stream, seen.context, targets));
  if (!sums_.kept.empty()) sums_.kept[static_cast<size_t>(layer)].Add(seen.context, targets[0]);
  return absl::OkStatus();
}

void ProbeFit::StartSolving() {
  {
    absl::MutexLock lock(&mu_);
    if (solving_) return;
    solving_ = true;
  }
  if (solver_.joinable()) solver_.join();
  solve_at_ = 2 * num_rows();
  solver_ = std::thread([this] {
    ThreadPool pool(1, false);
    std::vector<popularity::ProbeMap> maps = SolveNow(Stream::OnCpu(&pool));
    absl::MutexLock lock(&mu_);
    solved_ = std::move(maps);
    solving_ = false;
  });
}

std::vector<popularity::ProbeMap> ProbeFit::TakeSolved() {
  absl::MutexLock lock(&mu_);
  return std::exchange(solved_, {});
}

}  // namespace switchyard::moe
