#include "workers/moe/popularity/probe_fit.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::moe {
namespace {

constexpr double kMostCredit = 0.05;    // seconds: cheap passes are not paid back by one long step
constexpr int64_t kLeastRows = 2048;    // before the first solution
constexpr int64_t kRowsPerFeature = 8;  // likewise, times H + 1
constexpr int64_t kFirstRows = 4;       // to measure what a row costs
constexpr int64_t kRowsPerPass = 256;   // at most, where the share of the time is less than 1

void AppendValues(const Tensor& solved, std::vector<float>* values) {
  const TensorView view = solved;
  for (int64_t e = 0; e < view.dim(0); ++e) {
    const double* const row = view.row<double>(e);
    for (int64_t i = 0; i < view.dim(1); ++i) values->push_back(static_cast<float>(row[i]));
  }
}

// A copy of rows [begin, begin + count).
Tensor CopyRows(const TensorView& from, int64_t begin, int64_t count) {
  Tensor to(from.dtype(), {count, from.dim(1)});
  if (count > 0) std::memcpy(to.view().raw(), from.Rows(begin, count).raw(), static_cast<size_t>(to.bytes()));
  return to;
}

}  // namespace

int64_t ProbeFit::BytesOf(const ProbeFitOptions& options) {
  const int64_t width = options.hidden + 1;
  return static_cast<int64_t>(sizeof(double)) * width * (width + 2 * options.num_experts) * options.num_layers;
}

int64_t ProbeFit::SolvingBytesOf(const ProbeFitOptions& options) {
  ProbeFitOptions layer = options;
  layer.num_layers = 1;
  return 2 * BytesOf(layer);
}

std::vector<popularity::ProbeMap> ProbeFit::SolveNow(const Stream& stream) const {
  std::vector<popularity::ProbeMap> maps;
  for (int layer = 0; layer + 1 < options_.num_layers; ++layer) {
    std::optional<RidgeProbe> probe;
    {
      absl::MutexLock lock(&sums_mu_);
      const RidgeProbe& now = sums_[static_cast<size_t>(layer)];
      if (now.num_rows() < now.num_features()) continue;
      probe.emplace(now);
    }
    for (int target = 0; target < probe->num_targets(); ++target) {
      const absl::StatusOr<Tensor> solved = probe->Solve(stream, target);
      SY_CHECK_OK(solved.status());
      maps.push_back({.layer = layer, .ahead = target + 1, .num_rows = probe->num_rows(), .values = {}});
      AppendValues(*solved, &maps.back().values);
    }
  }
  return maps;
}

ProbeFit::ProbeFit(ProbeFitOptions options)
    : options_(options),
      seen_(static_cast<size_t>(options.num_layers)),
      solve_at_(std::max(kLeastRows, kRowsPerFeature * (options.hidden + 1))) {
  SY_CHECK(options_.num_layers >= 1 && options_.share > 0);
  for (int layer = 0; layer + 1 < options_.num_layers; ++layer)
    sums_.emplace_back(options_.hidden, options_.num_experts, num_targets(layer));
}

ProbeFit::~ProbeFit() {
  if (solver_.joinable()) solver_.join();
}

int ProbeFit::num_targets(int layer) const { return std::min(2, options_.num_layers - 1 - layer); }

void ProbeFit::Begin(int64_t num_rows, absl::Time now) {
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

ProbeFit::Window ProbeFit::window() const { return count_ == 0 ? Window() : Window{.first = begin_, .count = count_}; }

absl::Status ProbeFit::OnGate(const Stream& stream, int layer, const TensorView& x, const TensorView& logits,
                              absl::Time now) {
  if (layer + 1 == options_.num_layers) {
    credit_ = std::min(kMostCredit, credit_ + options_.share * absl::ToDoubleSeconds(now - pass_begin_));
  }
  if (count_ == 0) return absl::OkStatus();
  const absl::Time start = MonotonicNow();
  seen_[static_cast<size_t>(layer)] = {CopyRows(x, begin_, count_), CopyRows(logits, begin_, count_)};
  if (layer >= 2) RETURN_IF_ERROR(AddRows(stream, layer - 2));
  const bool last = layer + 1 == options_.num_layers;
  if (last && layer >= 1) RETURN_IF_ERROR(AddRows(stream, layer - 1));
  spent_ += absl::ToDoubleSeconds(MonotonicNow() - start);
  if (!last || count_ == 0) return absl::OkStatus();
  const double per_row = spent_ / static_cast<double>(count_);
  seconds_per_row_ = seconds_per_row_ == 0 ? per_row : seconds_per_row_ + (per_row - seconds_per_row_) / 16;
  credit_ -= spent_;
  return absl::OkStatus();
}

// Adds the layer's features with the logits of the layers after it.
absl::Status ProbeFit::AddRows(const Stream& stream, int layer) {
  std::vector<TensorView> targets;
  for (int ahead = 1; ahead <= num_targets(layer); ++ahead)
    targets.push_back(seen_[static_cast<size_t>(layer + ahead)].logits);
  const Seen& seen = seen_[static_cast<size_t>(layer)];
  if (!AllFinite(seen.x) || !std::all_of(targets.begin(), targets.end(), AllFinite)) {
    count_ = 0;
    return absl::OkStatus();
  }
  absl::MutexLock lock(&sums_mu_);
  return sums_[static_cast<size_t>(layer)].Add(stream, seen.x, targets);
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
