// Measures how much a rebalance moves, and how balanced the window after it is: the background balancer's policy beside
// EPLB, with and without renumbered devices.
//
//   residency_bench [--quick] [--trace=FILE]...
//
// Every policy sees a window of counts, rebalances, and is measured on the next window, by the exact best split of its
// rows over the replicas (min_max.h), the same for all.  (i) steady Zipf loads of which every window differs by +-10 %
// an expert; (ii) the same with a domain shift, in which half of the experts trade their loads, every third window;
// (iii) with traces: windows of real routing, three of each label in turn.  Every plan is carried out migration by
// migration and checked.  The last line is JSON.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "scheduler/base/check.h"
#include "scheduler/placement/background/residency.h"
#include "scheduler/placement/route/min_max.h"
#include "tests/bench/read_trace.h"
#include "tests/lab/placement/eplb_residency.h"

namespace switchyard {
namespace {

// The costs of a model of this shape: a layer takes a mean device half a millisecond, an expert of 12.6 MB (3 x 2048
// x 1024 bf16) is copied at 25 GB/s, and serving loses all of that time.
constexpr double kLayerSeconds = 0.5e-3, kMoveSeconds = 0.5e-3;
constexpr int64_t kExpertBytes = int64_t{3} * 2048 * 1024 * 2;
constexpr int kSteps = 300;  // of a window, and of the horizon

struct Policy {
  const char* name;
  absl::StatusOr<placement::ResidencyPlan> (*plan)(const placement::ResidencyProblem& problem);
};
constexpr Policy kPolicies[] = {
    {"ours", placement::PlanResidency},
    {"eplb", [](const placement::ResidencyProblem& problem) { return PlanEplbResidency(problem, false); }},
    {"eplb+match", [](const placement::ResidencyProblem& problem) { return PlanEplbResidency(problem, true); }}};
constexpr int kNumPolicies = 3;

struct Window {
  std::vector<popularity::Popularity> rows;  // [L][E]
  bool after_shift = false;                  // the first window of a domain: what it replaces was made for another
};

struct Shape {
  std::string name;
  int layers = 0, experts = 0, devices = 0, spare = 0;
};

struct Score {
  int64_t rebalances = 0, copies = 0, slots = 0, migrations = 0;
  double imbalance = 0;      // sum over windows and layers, on the window after
  double stayed = 0;         // the same, had it not moved
  double worst_seconds = 0;  // of planning
  int64_t measured = 0;      // windows times layers

  double Moved() const { return static_cast<double>(copies) / static_cast<double>(slots); }
  double MovedGigabytes() const {
    return static_cast<double>(copies * kExpertBytes) / 1e9 / static_cast<double>(rebalances);
  }
  double Imbalance() const { return imbalance / static_cast<double>(measured); }
  double Stayed() const { return stayed / static_cast<double>(measured); }
  // How much less busy the busiest device is, over the mean device, for each gigabyte moved a rebalance.
  double GainPerGigabyte() const { return copies == 0 ? 0 : (Stayed() - Imbalance()) / MovedGigabytes(); }
};

double ImbalanceOf(const std::vector<placement::Placement>& layers, const Window& window) {
  double sum = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const popularity::Popularity& rows = window.rows[layer];
    const int64_t total = popularity::TotalOf(rows);
    const auto busiest = placement::MinimizeBusiest(placement::ReplicaIndex(layers[layer]), rows).busiest;
    sum += total == 0 ? 1 : static_cast<double>(busiest) * layers[layer].num_devices() / static_cast<double>(total);
  }
  return sum;
}

placement::ResidencyProblem ProblemOf(const Shape& shape) {
  placement::ResidencyProblem problem;
  problem.layer_slots = (shape.experts + shape.devices - 1) / shape.devices + shape.spare;
  problem.costs = {
      .row_seconds = 0, .move_seconds = kMoveSeconds, .expert_bytes = kExpertBytes, .horizon_steps = kSteps};
  problem.phases.push_back({.steps = kSteps, .rows = {}});
  problem.present.assign(shape.layers, placement::ContiguousPlacement(shape.experts, shape.devices, shape.spare + 1));
  return problem;
}

// Carries the plan out, as workers would.
void CheckPlan(const placement::ResidencyProblem& problem, const placement::ResidencyPlan& plan) {
  std::vector<placement::Placement> layers = problem.present;
  for (const placement::ResidencyMigration& migration : plan.migrations)
    SY_CHECK_OK(placement::ApplyMigration(migration, problem.layer_slots, &layers));
  SY_CHECK_OK(placement::CheckResidency(layers, problem.layer_slots));
  SY_CHECK(layers == plan.layers);
}

// Windows [0, 2) let the policy converge; every later rebalance is scored on the window after it.
// only_shifts: score those after a window with a shift, and of the others nothing.
Score Run(const Shape& shape, const std::vector<Window>& windows, const Policy& policy, bool only_shifts) {
  placement::ResidencyProblem problem = ProblemOf(shape);
  Score score;
  for (size_t w = 0; w + 1 < windows.size(); ++w) {
    problem.phases[0].rows = windows[w].rows;
    int64_t total = 0;
    for (const popularity::Popularity& rows : windows[w].rows) total = std::max(total, popularity::TotalOf(rows));
    const double rows_a_step = static_cast<double>(total) / static_cast<double>(popularity::kRow) / kSteps;
    problem.costs.row_seconds = kLayerSeconds * shape.devices / std::max(1.0, rows_a_step);
    const auto start = std::chrono::steady_clock::now();
    const auto plan = policy.plan(problem);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    SY_CHECK_OK(plan.status());
    CheckPlan(problem, *plan);
    if (w >= 2 && (!only_shifts || windows[w].after_shift)) {
      ++score.rebalances;
      score.copies += plan->copies;
      score.migrations += static_cast<int64_t>(plan->migrations.size());
      score.slots += int64_t{shape.devices} * shape.layers * problem.layer_slots;
      score.imbalance += ImbalanceOf(plan->layers, windows[w + 1]);
      score.stayed += ImbalanceOf(problem.present, windows[w + 1]);
      score.measured += shape.layers;
    }
    score.worst_seconds = std::max(score.worst_seconds, seconds);
    problem.present = plan->layers;
  }
  return score;
}

// shift_every = 0: never.
std::vector<Window> ZipfWindows(const Shape& shape, double exponent, int num_windows, int shift_every) {
  std::mt19937_64 random(17);
  std::uniform_real_distribution<double> noise(0.9, 1.1);
  std::vector<std::vector<double>> base(shape.layers, std::vector<double>(shape.experts));
  for (auto& rows : base) {
    for (int e = 0; e < shape.experts; ++e) rows[e] = 1e5 * std::pow(e + 1, -exponent);
    std::shuffle(rows.begin(), rows.end(), random);
  }
  std::vector<Window> windows(num_windows);
  for (int w = 0; w < num_windows; ++w) {
    windows[w].after_shift = shift_every > 0 && w >= 2 && (w - 2) % shift_every == 0;
    for (auto& rows : base) {
      if (windows[w].after_shift) {  // half of the experts
        std::vector<int> traders(shape.experts);
        std::iota(traders.begin(), traders.end(), 0);
        std::shuffle(traders.begin(), traders.end(), random);
        for (int i = 0; i + 1 < shape.experts / 2; ++i) std::swap(rows[traders[i]], rows[traders[i + 1]]);
      }
      popularity::Popularity& counted = windows[w].rows.emplace_back();
      for (const double mean : rows) counted.push_back(std::llround(mean * noise(random)) * popularity::kRow);
    }
  }
  return windows;
}

// Three windows of each label in turn, of `tokens` tokens each.
std::vector<Window> TraceWindows(const std::vector<popularity::RoutingTrace>& traces, int64_t tokens) {
  std::map<std::string, std::vector<Window>> by_label;
  for (const popularity::RoutingTrace& trace : traces) {
    std::map<std::string, int64_t> filled;  // tokens of the label's last window
    for (const popularity::TraceSequence& sequence : trace.sequences) {
      std::vector<Window>& windows = by_label[sequence.label];
      for (int64_t t = 0; t < sequence.num_tokens(); ++t) {
        if (windows.empty() || filled[sequence.label] == tokens) {
          windows.push_back({.rows = std::vector<popularity::Popularity>(
                                 trace.shape.num_layers, popularity::Popularity(trace.shape.num_experts, 0))});
          filled[sequence.label] = 0;
        }
        ++filled[sequence.label];
        const popularity::RoutingView view = popularity::ViewOf(trace, sequence, 0, sequence.num_tokens());
        for (int layer = 0; layer < trace.shape.num_layers; ++layer) {
          for (const int16_t expert : view.Experts(t, layer)) {
            if (expert >= 0) windows.back().rows[layer][expert] += popularity::kRow;
          }
        }
      }
    }
    for (const auto& [label, count] : filled) {
      if (count < tokens) by_label[label].pop_back();
    }
  }
  std::vector<Window> windows;
  for (size_t turn = 0;; ++turn) {
    const size_t before = windows.size();
    for (const auto& [label, own] : by_label) {
      for (size_t w = turn * 3; w < turn * 3 + 3 && turn * 3 + 3 <= own.size(); ++w) {
        windows.push_back(own[w]);
        windows.back().after_shift = w == turn * 3;
      }
    }
    if (windows.size() == before) return windows;
  }
}

struct Summary {
  double moved_share = 0, imbalance_minus_eplb = -1e9;               // the worst of the noise shapes
  double shift_gain_ratio = 1e9, shift_imbalance_minus_eplb = -1e9;  // the worst of the shifts
  double plan_seconds = 0;
};

void Report(const Shape& shape, const char* what, const std::vector<Window>& windows, bool shifts, Summary* summary) {
  Score scores[kNumPolicies];
  for (int p = 0; p < kNumPolicies; ++p) {
    const Score& score = scores[p] = Run(shape, windows, kPolicies[p], shifts);
    std::printf("| %s, %d x %d over %d, %d spare | %s | %s | %.1f %% | %.3f | %.1f | %.3f | %.3f | %.3f | %.0f |\n",
                shape.name.c_str(), shape.layers, shape.experts, shape.devices, shape.spare, what, kPolicies[p].name,
                100 * score.Moved(), score.MovedGigabytes(),
                static_cast<double>(score.migrations) / static_cast<double>(score.rebalances), score.Stayed(),
                score.Imbalance(), score.GainPerGigabyte(), 1e3 * score.worst_seconds);
  }
  std::fflush(stdout);
  summary->plan_seconds = std::max(summary->plan_seconds, scores[0].worst_seconds);
  const double minus_eplb = scores[0].Imbalance() - scores[1].Imbalance();
  if (shifts) {
    const double theirs = std::max(scores[1].GainPerGigabyte(), scores[2].GainPerGigabyte());
    const double ours = scores[0].GainPerGigabyte();
    // Where theirs gain nothing, any gain is better: printed as a thousand times.
    summary->shift_gain_ratio = std::min(summary->shift_gain_ratio, theirs > ours / 1000 ? ours / theirs : 1000.0);
    summary->shift_imbalance_minus_eplb = std::max(summary->shift_imbalance_minus_eplb, minus_eplb);
  } else {
    summary->moved_share = std::max(summary->moved_share, scores[0].Moved());
    summary->imbalance_minus_eplb = std::max(summary->imbalance_minus_eplb, minus_eplb);
  }
}

void Main(bool quick, const std::vector<popularity::RoutingTrace>& traces) {
  Summary summary;
  std::printf(
      "| loads | windows | policy | slots moved | GB moved | migrations | unmoved | busiest over mean | gain per GB "
      "| ms |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  std::vector<std::pair<Shape, double>> shapes = {{{"Zipf 1.0", 4, 64, 16, 1}, 1.0},
                                                  {{"Zipf 0.7", 4, 64, 16, 2}, 0.7},
                                                  {{"Zipf 1.0", 4, 128, 16, 1}, 1.0},
                                                  {{"Zipf 0.7", 4, 16, 16, 1}, 0.7}};
  if (!quick) {
    shapes.push_back({{"Zipf 1.0", 8, 256, 32, 1}, 1.0});
    shapes.push_back({{"Zipf 0.7", 8, 256, 32, 2}, 0.7});
    shapes.push_back({{"Zipf 1.0", 64, 256, 32, 1}, 1.0});
  }
  for (const auto& [shape, exponent] : shapes) {
    const int windows = quick || shape.layers > 8 ? 6 : 18;
    Report(shape, "noise", ZipfWindows(shape, exponent, windows, 0), false, &summary);
    Report(shape, "shift", ZipfWindows(shape, exponent, windows, 3), true, &summary);
  }
  for (const int devices : {4, 8, 16}) {
    if (traces.empty()) break;
    const Shape shape{"real", traces[0].shape.num_layers, traces[0].shape.num_experts, devices, 1};
    const std::vector<Window> windows = TraceWindows(traces, quick ? 2048 : 4096);
    if (windows.size() < 6) {
      std::printf("traces hold %zu windows, 6 are needed\n", windows.size());
      break;
    }
    Report(shape, "domains", windows, true, &summary);
  }
  std::printf(
      "{\"benchmark\": \"residency\", \"moved_share\": %.4f, \"imbalance_minus_eplb\": %.4f, "
      "\"shift_gain_per_byte_over_best\": %.2f, \"shift_imbalance_minus_eplb\": %.4f, \"plan_seconds\": %.2f}\n",
      summary.moved_share, summary.imbalance_minus_eplb, summary.shift_gain_ratio, summary.shift_imbalance_minus_eplb,
      summary.plan_seconds);
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  bool quick = false;
  std::vector<switchyard::popularity::RoutingTrace> traces;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--quick") {
      quick = true;
    } else if (absl::ConsumePrefix(&argument, "--trace=")) {
      switchyard::popularity::RoutingTrace trace = switchyard::bench::ReadTraceOrExit(std::string(argument));
      if (!traces.empty() && !(trace.shape == traces[0].shape)) {
        std::fprintf(stderr, "residency_bench: %s: is of another model than the first\n",
                     std::string(argument).c_str());
        return 1;
      }
      traces.push_back(std::move(trace));
    } else {
      std::fprintf(stderr, "usage: residency_bench [--quick] [--trace=FILE]...\n");
      return 2;
    }
  }
  switchyard::Main(quick, traces);
  return 0;
}
