// Expert caches at a budget of device slots: our choice of policy beside lru, lfu, static and the offline bound, by the
// simulator.  usage: offload_bench [--fit=FILE --trace=FILE] [--quick] [--deciding]
// --deciding: what a decision takes of a processor, and nothing else.
// Traces are of `switchyard trace record` with channels probe and probe2; without, routing chains with their own best
// path estimate.  One row a point; ends with a line of JSON.  What the columns are: offload.md.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "scheduler/offload/policies/dueling_policy.h"
#include "scheduler/offload/policies/expected_use_policy.h"
#include "scheduler/popularity/trace/trace_file.h"
#include "tests/bench/deciding_time.h"
#include "tests/bench/read_trace.h"
#include "tests/lab/offload/choose_offload.h"
#include "tests/lab/routing/routing_chain.h"

namespace switchyard {
namespace {

constexpr int64_t kLayerTicks = 16000;
constexpr int kChunks = 16;
constexpr double kWarmup = 0.125;  // of a workload's layers

struct Traces {
  popularity::RoutingTrace fit, test;
  std::string one_ahead, two_ahead;
};

struct Phase {
  const char* name;
  int batch;
  int prefill_tokens;
  int64_t fit_passes, passes;
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

// The chain's best guesses of each token's experts, one and two layers ahead, as channels "path" and "path2".
void AddBestGuesses(const RoutingChain& chain, popularity::RoutingTrace* trace) {
  constexpr int kPlaces = 4;
  const popularity::RoutingShape& shape = trace->shape;
  trace->channels = {{"path", kPlaces}, {"path2", kPlaces}};
  std::vector<double> next(shape.num_experts);
  std::vector<int> order(shape.num_experts);
  for (popularity::TraceSequence& sequence : trace->sequences) {
    const popularity::RoutingView view = popularity::ViewOf(*trace, sequence, 0, sequence.num_tokens());
    for (const int ahead : {1, 2}) {
      std::vector<int16_t> predictions(static_cast<size_t>(sequence.num_tokens()) * shape.num_layers * kPlaces, -1);
      for (int64_t t = 0; t < sequence.num_tokens(); ++t) {
        for (int layer = ahead; layer < shape.num_layers; ++layer) {
          if (ahead == 1) chain.NextDistribution(view, t, layer, absl::MakeSpan(next));
          if (ahead == 2) chain.SecondNextDistribution(view, t, layer, absl::MakeSpan(next));
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&next](int a, int b) { return next[a] > next[b]; });
          for (int j = 0; j < kPlaces; ++j) {
            predictions[(t * shape.num_layers + layer) * kPlaces + j] = static_cast<int16_t>(order[j]);
          }
        }
      }
      sequence.predictions.push_back(std::move(predictions));
    }
  }
}

// The experts that each token's id predicts.
popularity::PathProfile TokensOf(const popularity::RoutingTrace& trace) {
  popularity::PathProfile profile({.model = trace.model,
                                   .shape = trace.shape,
                                   .context = popularity::ContextKind::kToken,
                                   .path_length = 1,
                                   .num_choices = 1},
                                  {.halve_after_tokens = 0});
  for (const popularity::TraceSequence& sequence : trace.sequences) {
    for (int layer = 0; layer < trace.shape.num_layers; ++layer)
      profile.Observe(popularity::ViewOf(trace, sequence, 0, sequence.num_tokens()), layer);
  }
  return profile;
}

Traces ChainTraces() {
  RoutingChainOptions options;
  options.shape = {.num_layers = 8, .num_experts = 16, .top_k = 2};
  const absl::StatusOr<RoutingChain> chain = RoutingChain::Tuned(options);
  if (!chain.ok()) {
    fprintf(stderr, "chain: %s\n", std::string(chain.status().message()).c_str());
    exit(2);
  }
  Traces traces = {chain->Draw({.num_sequences = 60, .seed = 1}), chain->Draw({.num_sequences = 40, .seed = 2}), "path",
                   "path2"};
  AddBestGuesses(*chain, &traces.fit);
  AddBestGuesses(*chain, &traces.test);
  return traces;
}

struct Figures {
  double worst_over_best = 1e9;         // ours over the best of lru, lfu (each with and without prefetch) and static
  double gap_closed = 1e9;              // of the gap from that best to the bound, the least of the target's points
  double gap_closed_demand_only = 1e9;  // the same from the best of lru, lfu and static without prefetch
  std::string known;                    // rows of the table of what perfect knowledge would close
  std::string before_pass;              // rows of the table of what tokens say before a pass
};

// One point of the table.
struct Point {
  const OffloadWorkload& fit;
  const OffloadWorkload& test;
  const OffloadWorkload& reported;  // test, and what tokens say before a pass
  double budget;                    // share of the experts
  double r;                         // copy time / layer time
  offload::OffloadShape shape;
  offload::CopyCost cost;
  absl::Span<const int64_t> popularity;

  OffloadRun RunOf(const OffloadWorkload& workload) const {
    return {shape.num_slots, cost, kLayerTicks, static_cast<int64_t>(workload.steps.size() * kWarmup)};
  }
  double Rate(offload::CachePolicy* policy) const { return RunOffload(test, RunOf(test), policy).relative_rate(); }
  double Rate(OffloadVariant variant) const {
    return Rate(MakeOffloadPolicy(variant, shape, cost, popularity, fit).get());
  }
};

// The part of the time between `from` and the bound that `rate` closes; in time, as rates near the bound are near each
// other.
double Closed(double from, double rate, double bound) {
  return from >= bound ? 1.0 : (1 / from - 1 / rate) / (1 / from - 1 / bound);
}

struct Bound {
  double demand_only = 0;
  double best = 0;
};

Bound BoundOf(const Point& point) {
  const NeedSequence needs = point.test.Needs();
  Bound bound;
  for (const bool prefetch : {false, true}) {
    for (const bool per_layer : {false, true}) {
      for (const bool wait : {false, true}) {
        if (per_layer && (wait || point.shape.num_slots < point.shape.num_layers)) continue;
        BeladyPolicy policy(point.shape, point.cost, {prefetch, per_layer, wait}, &needs, point.popularity);
        const double rate = point.Rate(&policy);
        bound.best = std::max(bound.best, rate);
        if (!prefetch) bound.demand_only = std::max(bound.demand_only, rate);
      }
    }
  }
  return bound;
}

// The workload as seen by a policy that knows for certain what the next `layers` layers need.
OffloadWorkload KnowAhead(OffloadWorkload workload, int layers) {
  for (size_t i = 0; i < workload.steps.size(); ++i) {
    std::vector<std::vector<int32_t>>& forecast = workload.steps[i].forecast;
    forecast.assign(static_cast<size_t>(layers), {});
    for (size_t ahead = 1; ahead <= forecast.size() && i + ahead < workload.steps.size(); ++ahead) {
      for (const int32_t rows : workload.steps[i + ahead].rows)
        forecast[ahead - 1].push_back(rows > 0 ? offload::kChance : 0);
    }
  }
  return workload;
}

// expected_use if it knew the next layers, and guessed those after them as ever.
std::string KnownRow(const Point& point, double from, double bound) {
  std::string row = absl::StrFormat("| %.0f %% | %g |", 100 * point.budget, point.r);
  for (const int layers : {0, 1, 2, 3, point.shape.num_layers - 1}) {
    const OffloadWorkload known = layers == 0 ? point.test : KnowAhead(point.test, layers);
    offload::ExpectedUsePolicy::Options options;
    if (layers > 0) options.prefetch_ahead = layers;
    offload::ExpectedUsePolicy policy(point.shape, point.cost, options, point.popularity);
    for (const OffloadStep& step : point.fit.steps) policy.Learn({step.layer, step.rows, 0});
    const double rate = RunOffload(known, point.RunOf(known), &policy).relative_rate();
    absl::StrAppendFormat(&row, " %.4f (%.2f) |", rate, Closed(from, rate, bound));
  }
  return row + "\n";
}

// expected_use where a pass computes a quarter of a layer before its first gate, without and with what tokens say then.
std::string BeforePassRow(const Point& point) {
  std::string row = absl::StrFormat("| %.0f %% | %g |", 100 * point.budget, point.r);
  OffloadRun run = point.RunOf(point.test);
  run.first_gate_ticks = kLayerTicks / 4;
  for (const OffloadWorkload* workload : {&point.test, &point.reported}) {
    const std::unique_ptr<offload::CachePolicy> policy =
        MakeOffloadPolicy(OffloadVariant(), point.shape, point.cost, point.popularity, point.fit);
    const OffloadResult result = RunOffload(*workload, run, policy.get());
    absl::StrAppendFormat(&row, " %.4f (%.3f, %.3f) |", result.relative_rate(), result.hit_rate(),
                          result.wasted_share());
  }
  return row + "\n";
}

void RunPoint(const Point& point, const Phase& phase, Figures* figures) {
  const OffloadChoice choice = ChooseOffload(point.fit, point.RunOf(point.fit), point.popularity);
  const auto* first = choice.variant.served() ? std::find(std::begin(offload::kDuelKinds),
                                                          std::end(offload::kDuelKinds), choice.variant.kind)
                                              : std::end(offload::kDuelKinds);
  offload::DuelingPolicy policy(
      point.shape, point.cost,
      offload::MakeDuelists({.shape = point.shape, .cost = point.cost, .popularity = point.popularity}),
      first == std::end(offload::kDuelKinds) ? 0 : static_cast<size_t>(first - std::begin(offload::kDuelKinds)));
  for (const OffloadStep& step : point.fit.steps) policy.Learn({step.layer, step.rows, 0});
  const std::string first_name(policy.leader().name());
  const OffloadResult result = RunOffload(point.test, point.RunOf(point.test), &policy);
  const double ours = result.relative_rate();
  using Kind = offload::OffloadKind;
  const double lru = point.Rate({Kind::kLru, false}), lru_greedy = point.Rate({Kind::kLru, true});
  const double lfu = point.Rate({Kind::kLfu, false}), lfu_greedy = point.Rate({Kind::kLfu, true});
  const double fixed = point.Rate({Kind::kStatic, false});
  const Bound bound = BoundOf(point);
  const double best_demand = std::max({lru, lfu, fixed});
  const double best = std::max({best_demand, lru_greedy, lfu_greedy});
  absl::PrintF(
      "| %s %d | %.0f %% | %g | %.4f | %.4f | %.4f | %.4f | %.4f | %.4f | %.4f | **%.4f** | %.2f | %.2f | %s | %d |\n",
      phase.name, phase.batch, 100 * point.budget, point.r, lru, lru_greedy, lfu, lfu_greedy, fixed, bound.demand_only,
      bound.best, ours, result.hit_rate(), result.wasted_share(), first_name, policy.num_changes());
  fflush(stdout);
  figures->worst_over_best = std::min(figures->worst_over_best, ours / best);
  if (phase.prefill_tokens > 0 || phase.batch != 1 || point.r > 1) return;
  if (point.budget != 0.5 && point.budget != 0.25) return;
  figures->gap_closed = std::min(figures->gap_closed, Closed(best, ours, bound.best));
  figures->gap_closed_demand_only = std::min(figures->gap_closed_demand_only, Closed(best_demand, ours, bound.best));
  figures->known += KnownRow(point, best, bound.best);
  figures->before_pass += BeforePassRow(point);
}

// The points of one phase.
void RunPhase(const Traces& traces, const Phase& phase, absl::Span<const int64_t> popularity, Figures* figures) {
  const popularity::PathProfile tokens = TokensOf(traces.fit);
  const auto cut = [&](const popularity::RoutingTrace& trace, int64_t passes, const popularity::PathProfile* by_token) {
    return CutWorkload(trace,
                       {phase.batch, phase.prefill_tokens, passes, traces.one_ahead, traces.two_ahead, by_token});
  };
  const absl::StatusOr<OffloadWorkload> fit = cut(traces.fit, phase.fit_passes, nullptr),
                                        test = cut(traces.test, phase.passes, nullptr),
                                        reported = cut(traces.test, phase.passes, &tokens);
  for (const absl::StatusOr<OffloadWorkload>* workload : {&fit, &test, &reported}) {
    if (workload->ok()) continue;
    fprintf(stderr, "offload_bench: %s\n", std::string(workload->status().message()).c_str());
    exit(2);
  }
  for (const double budget : {1.0, 0.5, 0.25, 0.1}) {
    for (const double r : {0.1, 1.0, 10.0}) {
      RunPoint({.fit = *fit,
                .test = *test,
                .reported = *reported,
                .budget = budget,
                .r = r,
                .shape = {test->num_layers, test->num_experts,
                          static_cast<int>(test->num_layers * test->num_experts * budget)},
                .cost = {static_cast<int64_t>(kLayerTicks * r), kChunks},
                .popularity = popularity},
               phase, figures);
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
  Traces traces = fit_path.empty()
                      ? ChainTraces()
                      : Traces{bench::ReadTraceOrExit(fit_path), bench::ReadTraceOrExit(test_path), "probe", "probe2"};
  MixLabels(&traces.fit);
  const std::vector<int64_t> popularity = MarginalRows(traces.fit);
  absl::PrintF(
      "| phase, batch | slots | r | lru | lru+greedy | lfu | lfu+greedy | static | belady | bound | ours | hits "
      "| wasted | begins as | changes |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  Figures figures;
  const int less = quick ? 8 : 1;
  for (const Phase& phase :
       {Phase{"decode", 1, 0, 8000 / less, 1600 / less}, Phase{"decode", 8, 0, 800 / less, 160 / less},
        Phase{"decode", 32, 0, 400 / less, 80 / less}, Phase{"prefill", 1, 512, 80 / less, 40 / less}}) {
    RunPhase(traces, phase, popularity, &figures);
  }
  absl::PrintF(
      "\n| slots | r | expected_use | know 1 | know 2 | know 3 | know token |\n|---|---|---|---|---|---|---|\n%s",
      figures.known);
  absl::PrintF("\n| slots | r | expected_use (hits, wasted) | forecast before a pass |\n|---|---|---|---|\n%s",
               figures.before_pass);
  absl::PrintF(
      "{\"bench\": \"offload\", \"trace\": \"%s\", \"worst_over_best_baseline\": %.4f, \"gap_to_bound_closed\": "
      "%.3f, \"gap_closed_from_demand_only\": %.3f}\n",
      traces.test.model, figures.worst_over_best, figures.gap_closed, figures.gap_closed_demand_only);
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
