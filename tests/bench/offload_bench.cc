// Expert caches at a budget of device slots: our policy beside lru, lfu, static and the offline bound, by the
// simulator. usage: offload_bench [--fit=FILE --trace=FILE] [--quick] [--deciding]
// --deciding: what a decision takes of a processor, and nothing else.
// Traces are of `switchyard trace record`; without, routing chains.  One row a point; ends with a line of JSON.  What
// the columns are: offload.md.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "scheduler/offload/policies/policy_kind.h"
#include "tests/bench/deciding_time.h"
#include "tests/bench/read_trace.h"
#include "tests/lab/offload/offload_sim.h"
#include "tests/lab/offload/rule_policy.h"
#include "tests/lab/routing/routing_chain.h"

namespace switchyard {
namespace {

using offload::OffloadKind;

constexpr int64_t kLayerTicks = 16000;
constexpr int kChunks = 16;
constexpr double kWarmup = 0.125;  // of a workload's layers

struct Traces {
  popularity::RoutingTrace fit, test;
};

struct Phase {
  const char* name;
  WorkloadOptions options;
};

// Sequences of the labels in turn, so that a part of the trace has some of each.
void MixLabels(popularity::RoutingTrace* trace) {
  std::map<std::string, int> seen;
  std::vector<std::pair<int, popularity::TraceSequence>> sequences;
  for (popularity::TraceSequence& sequence : trace->sequences) {
    const int position = seen[sequence.label]++;
    sequences.emplace_back(position, std::move(sequence));
  }
  std::stable_sort(sequences.begin(), sequences.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < sequences.size(); ++i) trace->sequences[i] = std::move(sequences[i].second);
}

// Four predictions of each token's experts one and two layers ahead, as channels "probe" and "probe2".  A true expert's
// score is normal about kLift, another's about 0; so a probe's share of experts found is matched (offload.md).
void AddEmulatedProbe(popularity::RoutingTrace* trace) {
  constexpr int kPlaces = 4;
  constexpr double kLift[] = {2.82, 2.4};
  const popularity::RoutingShape& shape = trace->shape;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  trace->channels = {{"probe", kPlaces}, {"probe2", kPlaces}};
  std::vector<std::pair<double, int16_t>> scores(static_cast<size_t>(shape.num_experts));
  for (popularity::TraceSequence& sequence : trace->sequences) {
    sequence.predictions.clear();
    for (const int ahead : {1, 2}) {
      std::vector<int16_t> predictions(sequence.experts.size() / shape.top_k * kPlaces, -1);
      for (size_t at = 0; at < predictions.size() / kPlaces; ++at) {
        if (static_cast<int>(at) % shape.num_layers < ahead) continue;
        const auto own = sequence.experts.begin() + static_cast<int64_t>(at) * shape.top_k;
        for (size_t e = 0; e < scores.size(); ++e) {
          const bool is = std::find(own, own + shape.top_k, static_cast<int16_t>(e)) != own + shape.top_k;
          scores[e] = {-normal(random) - (is ? kLift[ahead - 1] : 0), static_cast<int16_t>(e)};
        }
        std::sort(scores.begin(), scores.end());
        for (int j = 0; j < kPlaces; ++j) predictions[at * kPlaces + j] = scores[j].second;
      }
      sequence.predictions.push_back(std::move(predictions));
    }
  }
}

Traces ChainTraces() {
  RoutingChainOptions options;
  options.shape = {.num_layers = 8, .num_experts = 16, .top_k = 2};
  const absl::StatusOr<RoutingChain> chain = RoutingChain::Tuned(options);
  if (!chain.ok()) {
    fprintf(stderr, "chain: %s\n", std::string(chain.status().message()).c_str());
    exit(2);
  }
  return {chain->Draw({.num_sequences = 60, .seed = 1}), chain->Draw({.num_sequences = 40, .seed = 2})};
}

OffloadWorkload CutOrExit(const popularity::RoutingTrace& trace, WorkloadOptions options, bool forecast) {
  if (forecast) options.one_ahead = "probe", options.two_ahead = "probe2";
  absl::StatusOr<OffloadWorkload> workload = CutWorkload(trace, options);
  if (workload.ok()) return *std::move(workload);
  fprintf(stderr, "offload_bench: %s\n", std::string(workload.status().message()).c_str());
  exit(2);
}

// One point of the table.
struct Point {
  const OffloadWorkload& plain;
  const OffloadWorkload& forecast;
  double budget;  // share of the experts
  double r;       // copy time / layer time
  offload::OffloadShape shape;
  offload::CopyCost cost;

  OffloadResult Run(const OffloadWorkload& workload, offload::CachePolicy* policy) const {
    const auto warmup = static_cast<int64_t>(static_cast<double>(workload.steps.size()) * kWarmup);
    return RunOffload(workload,
                      {.num_slots = shape.num_slots, .cost = cost, .layer_ticks = kLayerTicks, .warmup_layers = warmup},
                      policy);
  }
  // As a worker begins: it knows nothing of any expert.
  OffloadResult Run(const OffloadWorkload& workload, OffloadKind kind) const {
    const std::vector<int64_t> alike(static_cast<size_t>(shape.num_keys()), 1);
    const auto policy =
        offload::MakeCachePolicy(kind, {.shape = shape, .cost = cost, .popularity = alike, .least_per_layer = 2});
    return Run(workload, policy.get());
  }
  double Rule(RulePolicy::Rule rule, absl::Span<const int64_t> popularity) const {
    const bool per_layer = rule == RulePolicy::Rule::kLfu && shape.num_slots >= 2 * shape.num_layers;
    RulePolicy policy(shape, {.rule = rule, .per_layer = per_layer}, popularity);
    return Run(plain, &policy).relative_rate();
  }
};

struct Bound {
  double demand_only = 0;
  double best = 0;
};

Bound BoundOf(const Point& point, absl::Span<const int64_t> popularity) {
  const NeedSequence needs = point.plain.Needs();
  Bound bound;
  for (const bool prefetch : {false, true}) {
    for (const bool per_layer : {false, true}) {
      for (const bool wait : {false, true}) {
        if (per_layer && (wait || point.shape.num_slots < point.shape.num_layers)) continue;
        BeladyPolicy policy(point.shape, point.cost, {prefetch, per_layer, wait}, &needs, popularity);
        const double rate = point.Run(point.plain, &policy).relative_rate();
        bound.best = std::max(bound.best, rate);
        if (!prefetch) bound.demand_only = std::max(bound.demand_only, rate);
      }
    }
  }
  return bound;
}

struct Figures {
  double worst_over_best = 1e9;            // ours over the best of lru, lfu and static
  std::map<std::string, double> over_lru;  // by phase: sums of logarithms of ours over lru
  std::map<std::string, int> points;
  std::string OverLru() const {
    std::string text;
    for (const auto& [phase, sum] : over_lru) {
      absl::StrAppendFormat(&text, "%s\"%s\": %.4f", text.empty() ? "" : ", ", phase, std::exp(sum / points.at(phase)));
    }
    return text;
  }
};

void RunPoint(const Point& point, const std::string& phase, absl::Span<const int64_t> popularity, Figures* figures) {
  const double lru = point.Run(point.plain, OffloadKind::kLru).relative_rate();
  const double lfu = point.Rule(RulePolicy::Rule::kLfu, popularity);
  const double fixed = point.Rule(RulePolicy::Rule::kStatic, popularity);
  const Bound bound = BoundOf(point, popularity);
  const OffloadResult ours = point.Run(point.plain, OffloadKind::kExpectedUse);
  const double forecast = point.Run(point.forecast, OffloadKind::kExpectedUse).relative_rate();
  absl::PrintF("| %s | %.0f %% | %g | %.4f | %.4f | %.4f | %.4f | %.4f | **%.4f** | %.2f | %.2f | %.4f |\n", phase,
               100 * point.budget, point.r, lru, lfu, fixed, bound.demand_only, bound.best, ours.relative_rate(),
               ours.hit_rate(), ours.wasted_share(), forecast);
  fflush(stdout);
  figures->worst_over_best = std::min(figures->worst_over_best, ours.relative_rate() / std::max({lru, lfu, fixed}));
  figures->over_lru[phase] += std::log(ours.relative_rate() / lru);
  ++figures->points[phase];
}

void RunPhase(const Traces& traces, const Phase& phase, absl::Span<const int64_t> popularity, Figures* figures) {
  const OffloadWorkload plain = CutOrExit(traces.test, phase.options, false);
  const OffloadWorkload forecast = CutOrExit(traces.test, phase.options, true);
  for (const double budget : {0.5, 0.25, 0.1}) {
    for (const double r : {0.1, 1.0, 4.0, 10.0}) {
      RunPoint({.plain = plain,
                .forecast = forecast,
                .budget = budget,
                .r = r,
                .shape = {.num_layers = plain.num_layers,
                          .num_experts = plain.num_experts,
                          .num_slots = static_cast<int>(plain.num_layers * plain.num_experts * budget),
                          .token_uses = traces.test.shape.top_k},
                .cost = {static_cast<int64_t>(kLayerTicks * r), kChunks}},
               phase.name, popularity, figures);
    }
  }
}

int Main(int argc, char** argv) {
  std::string fit_path, test_path;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view flag = argv[i];
    if (absl::ConsumePrefix(&flag, "--fit=")) {
      fit_path = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--trace=")) {
      test_path = std::string(flag);
    } else if (flag == "--quick") {
      quick = true;
    } else if (flag == "--deciding") {
      bench::PrintDecidingTimes();
      return 0;
    } else {
      fprintf(stderr, "usage: offload_bench [--fit=FILE --trace=FILE] [--quick] [--deciding]\n");
      return 2;
    }
  }
  if (fit_path.empty() != test_path.empty()) {
    fprintf(stderr, "offload_bench: --fit and --trace go together\n");
    return 2;
  }
  Traces traces =
      fit_path.empty() ? ChainTraces() : Traces{bench::ReadTraceOrExit(fit_path), bench::ReadTraceOrExit(test_path)};
  MixLabels(&traces.test);
  AddEmulatedProbe(&traces.test);
  const std::vector<int64_t> popularity = MarginalRows(traces.fit);
  absl::PrintF(
      "| phase, batch | slots | r | lru | lfu | static | belady | bound | ours | hits | wasted | with forecasts |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  Figures figures;
  const int64_t less = quick ? 8 : 1;
  for (const Phase& phase :
       {Phase{"texts", {.prompt_tokens = 200, .decoded_tokens = 39, .max_passes = 1920 / less}},
        Phase{"decode 1", {.max_passes = 1600 / less}}, Phase{"decode 4", {.batch = 4, .max_passes = 400 / less}},
        Phase{"decode 8", {.batch = 8, .max_passes = 160 / less}},
        Phase{"decode 32", {.batch = 32, .max_passes = 80 / less}},
        Phase{"prefill 512", {.prefill_tokens = 512, .max_passes = 40 / less}}}) {
    RunPhase(traces, phase, popularity, &figures);
  }
  absl::PrintF("{\"bench\": \"offload\", \"trace\": \"%s\", \"worst_over_best_baseline\": %.4f, \"over_lru\": {%s}}\n",
               traces.test.model, figures.worst_over_best, figures.OverLru());
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
