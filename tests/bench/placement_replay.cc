// Placement policies without a network: how even they keep devices, what they copy, and what deciding costs.
//
// placement_replay                          decision time, and Zipf loads with estimates that are off by a given total
// variation placement_replay FIT.trace HELD.trace     the same after replaying a recorded trace (channel "probe") on 16
// devices Ratios are rows of the busiest device over the mean, median / p95.  Answers are checked: every row has a
// replica that holds its expert.  For times that pass, see tests/bench/run.sh placement.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/placement/lina/alias_placement.h"
#include "scheduler/placement/lina/paper_allocation.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "scheduler/popularity/trace/trace_file.h"
#include "scheduler/simulator/trace_batches.h"
#include "tests/bench/read_trace.h"
#include "tests/lab/placement/alias_anew.h"
#include "tests/lab/routing/forecast_scores.h"
#include "tests/lab/routing/share_correction.h"
#include "workers/comm/core/timed.h"

namespace switchyard {
namespace {

struct Sample {
  std::vector<double> values;
  void Add(double value) { values.push_back(value); }
  double At(double quantile) {
    SY_CHECK(!values.empty());
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(quantile * static_cast<double>(values.size() - 1))];
  }
  std::string ToString() {
    char text[40];
    std::snprintf(text, sizeof(text), "%.2f / %.2f", At(0.5), At(0.95));
    return text;
  }
};

double Ratio(int64_t busiest, absl::Span<const int64_t> rows, int num_devices) {
  return static_cast<double>(busiest) * num_devices / static_cast<double>(popularity::TotalOf(rows));
}
double Best(const placement::Placement& placement, absl::Span<const int64_t> rows) {
  return Ratio(placement::MinimizeBusiest(placement::ReplicaIndex(placement), rows).busiest, rows,
               placement.num_devices());
}

void CheckSplit(const placement::SplitTable& split, const placement::RowCounts& counts,
                const placement::Placement& placement) {
  for (int rank = 0; rank < counts.num_ranks; ++rank) {
    for (int expert = 0; expert < counts.num_experts; ++expert) {
      int64_t rows = 0;
      for (const placement::SplitPiece& piece : split.Pieces(rank, expert)) {
        SY_CHECK(placement.Holds(piece.device, expert));
        rows += piece.rows;
      }
      SY_CHECK_EQ(rows, counts.At(rank, expert));
    }
  }
}

// A Zipf load of exponent 1 over shuffled experts, and an estimate at about this total variation from it.
struct Load {
  popularity::Popularity rows, estimate;
};
Load ZipfLoad(std::mt19937_64& rng, int num_experts, double tv) {
  std::vector<int> rank(num_experts);
  std::iota(rank.begin(), rank.end(), 1);
  std::shuffle(rank.begin(), rank.end(), rng);
  Load load;
  for (const int r : rank) load.rows.push_back((int64_t{1} << 32) / r);
  std::normal_distribution<double> normal;
  std::vector<double> noise(num_experts);
  for (double& n : noise) n = normal(rng);
  load.estimate = load.rows;
  for (double low = 0, high = tv > 0 ? 4 : 0; high - low > 1e-4;) {
    const double scale = (low + high) / 2;
    for (int e = 0; e < num_experts; ++e) {
      load.estimate[e] = static_cast<int64_t>(static_cast<double>(load.rows[e]) * std::exp(scale * noise[e]));
    }
    (TotalVariation(load.estimate, load.rows) > tv ? high : low) = scale;
  }
  return load;
}

void SyntheticTable() {
  std::printf("\nZipf 1.0, rows split by counts, 200 loads; all slots placed (residents fixed, neighbours)\n");
  std::printf(
      "experts/devices  spare  static          TV 0                          0.03                          "
      "0.06                          0.12\n");
  for (const auto& [num_experts, num_devices] : {std::pair(16, 16), {64, 16}, {128, 16}, {256, 32}}) {
    for (const int spare : {1, 2}) {
      Sample still;
      std::string line;
      for (const double tv : {0.0, 0.03, 0.06, 0.12}) {
        std::mt19937_64 rng(7);
        Sample all, fixed;
        const placement::Placement base = placement::ContiguousPlacement(num_experts, num_devices, spare);
        for (int round = 0; round < 200; ++round) {
          const Load load = ZipfLoad(rng, num_experts, tv);
          const auto error = static_cast<int64_t>(tv * popularity::kRow);
          const AliasShape shape{num_devices, num_experts / num_devices + spare, error};
          all.Add(Best(AliasPlacement(load.estimate, shape).value(), load.rows));
          fixed.Add(Best(placement::FillEmptySlots(base, {}, {.estimate = load.estimate, .error = error}), load.rows));
          still.Add(Best(base, load.rows));
        }
        absl::StrAppend(&line, "   ", all.ToString(), " (", fixed.ToString(), ")");
      }
      std::printf("%7d/%-7d %5d    %s%s\n", num_experts, num_devices, spare, still.ToString().c_str(), line.c_str());
    }
  }
}

// CPU time of one decision: the split of this layer, and new slots for the next one every time (copies cost nothing,
// nothing is even enough), which is the most that it can do.
double DecisionTable() {
  std::printf("decision time, CPU us a layer, one thread, uncontended only if the machine is idle\n");
  std::printf("experts/devices  spare  rows   median   p95\n");
  double asked = 0;
  for (const auto& [num_experts, num_devices] : {std::pair(16, 16), {64, 16}, {128, 16}, {256, 32}}) {
    for (const int spare : {1, 2}) {
      placement::PolicyShape shape{.residents = {placement::ContiguousPlacement(num_experts, num_devices, spare),
                                                 placement::ContiguousPlacement(num_experts, num_devices, spare)},
                                   .costs = {.copy_ps = 0, .row_ps = 1, .layer_ps = 1},
                                   .even_enough = 0};
      const std::unique_ptr<placement::PlacementPolicy> policy = placement::MakePlacementPolicy(shape).value();
      std::mt19937_64 rng(5);
      Sample time;
      for (int step = 0; step < 400; ++step) {
        const Load load = ZipfLoad(rng, num_experts, 0.06);
        std::vector<int32_t> rows(static_cast<size_t>(num_devices) * num_experts);
        std::vector<double> weights(load.rows.begin(), load.rows.end());
        std::discrete_distribution<int> expert(weights.begin(), weights.end());
        for (int row = 0; row < 16384; ++row) ++rows[rng() % num_devices * num_experts + expert(rng)];
        const placement::RowCounts counts{num_devices, num_experts, rows};
        const popularity::Popularity estimate = popularity::ScaledTo(load.estimate, 16384 * popularity::kRow);
        const placement::LayerEstimate reported{.layer = 1 - step % 2, .popularity = estimate};
        const double start = comm::ThreadCpuSeconds();
        const placement::LayerDecision decision =
            policy->Decide({.step = step / 2, .layer = step % 2, .counts = counts, .estimates = {&reported, 1}});
        time.Add(1e6 * (comm::ThreadCpuSeconds() - start));
        CheckSplit(decision.split, counts, policy->table(decision.layer).placement());
      }
      std::printf("%7d/%-7d %5d   16384  %6.1f %6.1f\n", num_experts, num_devices, spare, time.At(0.5), time.At(0.95));
      if (num_experts == 64) asked = std::max(asked, time.At(0.5));
    }
  }
  return asked;
}

struct Replay {
  const char* name;
  placement::PlacementMode mode;
  int spare;
  placement::LayerCosts costs;
};

class Replayer {
 public:
  Replayer(const popularity::RoutingTrace& fit, const popularity::RoutingTrace& held, int num_devices)
      : held_(held),
        num_devices_(num_devices),
        marginal_(held.shape.num_layers, popularity::Popularity(held.shape.num_experts, 0)) {
    for (const popularity::TraceSequence& sequence : fit.sequences) {
      for (int layer = 0; layer < held.shape.num_layers; ++layer) {
        const popularity::RoutingView view = popularity::ViewOf(fit, sequence, 0, sequence.num_tokens());
        for (int64_t t = 0; t < view.num_tokens; ++t) {
          for (const int16_t e : view.Experts(t, layer)) marginal_[layer][e] += e >= 0 ? 1 : 0;
        }
      }
    }
    for (size_t c = 0; c < held.channels.size(); ++c) probe_ = held.channels[c].name == "probe" ? c : probe_;
  }

  enum class Source { kMarginal, kProbe, kCorrected, kTrue };

  // "median / p95, copies a layer"; layer 0, which has no probe, is left out.
  std::string Run(const Replay& replay, Source source, popularity::Phase phase, int64_t batch_tokens) {
    const int num_layers = held_.shape.num_layers, num_experts = held_.shape.num_experts;
    placement::PolicyShape shape{
        .mode = replay.mode, .top_k = held_.shape.top_k, .residents = {}, .costs = replay.costs};
    shape.residents.assign(num_layers, placement::ContiguousPlacement(num_experts, num_devices_, replay.spare));
    const std::unique_ptr<placement::PlacementPolicy> policy = placement::MakePlacementPolicy(shape).value();
    std::vector<ShareCorrection> corrections(num_layers, ShareCorrection(num_experts));
    simulator::TraceBatches batches(&held_, phase, batch_tokens);
    Sample ratio;
    double copies = 0;
    for (int64_t batch = 0; batch < batches.num_batches(); ++batch) {
      batches.Load(batch);
      const popularity::RoutingView view = batches.View();
      for (int layer = 0; layer < num_layers; ++layer) {
        const std::vector<int32_t> rows = popularity::CountsByPart(view, layer, num_devices_);
        const placement::RowCounts counts{num_devices_, num_experts, rows};
        std::vector<placement::LayerEstimate> reported;
        const popularity::Popularity estimate =
            layer + 1 < num_layers ? Estimate(source, batches, layer + 1, corrections) : popularity::Popularity();
        if (!estimate.empty()) reported.push_back({.layer = layer + 1, .popularity = estimate});
        const placement::LayerDecision decision =
            policy->Decide({.step = batch, .layer = layer, .counts = counts, .estimates = reported});
        for (const placement::SlotPlan& plan : decision.prefetch)
          copies += static_cast<double>(placement::NumCopies(plan.changes));
        if (layer == 0) continue;
        copies += static_cast<double>(placement::NumCopies(decision.demand.changes));
        ratio.Add(Ratio(decision.split.busiest(), counts.OfExperts(), num_devices_));
        CheckSplit(decision.split, counts, policy->table(layer).placement());
        if (source == Source::kCorrected) Correct(batches, layer, counts, corrections);
      }
    }
    char text[64];
    std::snprintf(text, sizeof(text), "%s %4.1f", ratio.ToString().c_str(),
                  copies / static_cast<double>(batches.num_batches() * (num_layers - 1)));
    return text;
  }

 private:
  popularity::Popularity Probe(const simulator::TraceBatches& batches, int layer) const {
    popularity::Popularity rows(held_.shape.num_experts, 0);
    const std::vector<int16_t> said = batches.Predictions(probe_, layer);
    const auto stride = static_cast<size_t>(held_.channels[probe_].num_predicted);
    for (size_t at = 0; at < said.size(); at += stride) {
      for (int k = 0; k < held_.shape.top_k; ++k) rows[said[at + k]] += said[at + k] >= 0 ? popularity::kRow : 0;
    }
    return rows;
  }
  popularity::Popularity Estimate(Source source, const simulator::TraceBatches& batches, int layer,
                                  const std::vector<ShareCorrection>& corrections) const {
    const popularity::RoutingView view = batches.View();
    const int64_t total = view.num_tokens * held_.shape.top_k * popularity::kRow;
    if (source == Source::kMarginal) return popularity::ScaledTo(marginal_[layer], total);
    if (source == Source::kTrue) {
      const std::vector<int32_t> rows = popularity::CountsByPart(view, layer, 1);
      return popularity::FromCounts(std::vector<int64_t>(rows.begin(), rows.end()));
    }
    popularity::Popularity rows = Probe(batches, layer);
    if (source == Source::kCorrected) corrections[layer].Apply(absl::MakeSpan(rows));
    return rows;
  }
  void Correct(const simulator::TraceBatches& batches, int layer, const placement::RowCounts& counts,
               std::vector<ShareCorrection>& corrections) const {
    const std::vector<int64_t> rows = counts.OfExperts();
    corrections[layer].Update(Probe(batches, layer), popularity::FromCounts(rows), popularity::TotalOf(rows));
  }

  const popularity::RoutingTrace& held_;
  const int num_devices_;
  std::vector<popularity::Popularity> marginal_;  // [L][E]
  size_t probe_ = 0;
};

void TraceTable(const char* fit_path, const char* held_path) {
  const popularity::RoutingTrace fit = bench::ReadTraceOrExit(fit_path), held = bench::ReadTraceOrExit(held_path);
  Replayer replayer(fit, held, 16);
  const placement::LayerCosts free{.copy_ps = 0, .row_ps = 1000, .layer_ps = 1000};
  using Source = Replayer::Source;
  using Mode = placement::PlacementMode;
  const std::tuple<Replay, const char*, Source> kRuns[] = {
      {{"static", Mode::kStatic, 0, free}, "-", Source::kMarginal},
      {{"static+spare, 2 slots", Mode::kStaticSpare, 1, free}, "-", Source::kMarginal},
      {{"static+spare, 3 slots", Mode::kStaticSpare, 2, free}, "-", Source::kMarginal},
      {{"static+spare, 4 slots", Mode::kStaticSpare, 3, free}, "-", Source::kMarginal},
      {{"no_finetune, 4 slots", Mode::kNoFinetune, 3, free}, "marginal", Source::kMarginal},
      {{"no_finetune, 4 slots", Mode::kNoFinetune, 3, free}, "probe+correction", Source::kCorrected},
      {{"no_finetune, 4 slots", Mode::kNoFinetune, 3, free}, "true", Source::kTrue},
      {{"central, 4 slots", Mode::kCentral, 3, free}, "probe+correction", Source::kCorrected},
      {{"no_estimate, 4 slots", Mode::kNoEstimate, 3, free}, "-", Source::kMarginal},
      {{"agreed, 2 slots", Mode::kAgreed, 1, {}}, "marginal", Source::kMarginal},
      {{"agreed, 3 slots", Mode::kAgreed, 2, {}}, "marginal", Source::kMarginal},
      {{"agreed, 2 slots", Mode::kAgreed, 1, {}}, "probe", Source::kProbe},
      {{"agreed, 2 slots", Mode::kAgreed, 1, {}}, "probe+correction", Source::kCorrected},
      {{"agreed, 3 slots", Mode::kAgreed, 2, {}}, "probe+correction", Source::kCorrected},
      {{"agreed, 4 slots", Mode::kAgreed, 3, {}}, "probe+correction", Source::kCorrected},
      {{"oracle, 2 slots", Mode::kOracle, 1, {}}, "true", Source::kTrue},
  };
  for (const popularity::Phase phase : {popularity::Phase::kPrefill, popularity::Phase::kDecode}) {
    std::printf("\n%s, 16 devices: busiest / mean, median / p95, copies a layer (all devices)\n",
                phase == popularity::Phase::kPrefill ? "prefill" : "decode");
    std::printf("%-24s %-18s %-18s %-18s %s\n", "mode", "estimate", "batch 32", "256", "2048");
    for (const auto& [run, estimate, source] : kRuns) {
      // Ours: a copy hides behind one layer, and a demanded one never pays, so that what is seen is the split.
      Replay replay = run;
      if (replay.costs == placement::LayerCosts{})
        replay.costs = {.copy_ps = 1'000'000'000, .row_ps = 1, .layer_ps = 3'000'000'000};
      std::string line;
      for (const int64_t batch_tokens : {32, 256, 2048}) {
        absl::StrAppend(&line, replayer.Run(replay, source, phase, batch_tokens), "   ");
      }
      std::printf("%-24s %-18s %s\n", replay.name, estimate, line.c_str());
      std::fflush(stdout);
    }
  }
}

int Main(int argc, char** argv) {
  if (argc != 1 && argc != 3) {
    std::fprintf(stderr, "usage: placement_replay [FIT.trace HELD.trace]\n");
    return 2;
  }
  const double decision_us = DecisionTable();
  SyntheticTable();
  if (argc == 3) TraceTable(argv[1], argv[2]);
  std::printf("{\"decision_us\": %.1f}\n", decision_us);
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
