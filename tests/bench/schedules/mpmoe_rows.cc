#include <algorithm>
#include <iostream>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/check.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/simulator/program_costs.h"
#include "tests/bench/schedules/paper_rows.h"

namespace switchyard::bench {
namespace {

using pipeline::BufferKind;
using pipeline::ExpertParallelOptions;
using pipeline::HiddenRestore;
using pipeline::InputRestore;
using simulator::Cluster;
using simulator::MoeLayerShape;

// Table III; 64 experts, one choice a token, fp16 (tensor cores of V100 need it).
struct MpModel {
  const char* name;
  double hidden, expert_hidden;
  // How much longer experts take without tensor cores: MP-8, by which these take 58 % (BERT-L) and 44 % (GPT-XL) off
  // their time on Valor; of GPT-S, which it does not name, the mean.
  double without_tensor_cores;
};
constexpr MpModel kModels[] = {{"GPT-S", 768, 3072, 1 / (1 - 0.51)},
                               {"BERT-L", 1024, 4096, 1 / (1 - 0.58)},
                               {"GPT-XL", 2048, 8192, 1 / (1 - 0.44)}};
constexpr double kExperts = 64;
constexpr int kChunks[] = {2, 4, 8};
constexpr std::pair<const char*, pipeline::RestoreStrategy> kRestores[] = {
    {"S1", {InputRestore::kOffload, HiddenRestore::kOffload}},
    {"S2", {InputRestore::kResend, HiddenRestore::kOffload}},
    {"S3", {InputRestore::kOffload, HiddenRestore::kRecompute}},
    {"S4", {InputRestore::kResend, HiddenRestore::kRecompute}}};

// Peak rates: A100 312 TFLOP/s, NVLink 300 GB/s each way, PCIe 4; V100 125, 150, PCIe 3.  The paper gives an Adira node
// 200 Gb/s; the machine that it names has as much for each GPU.
Cluster Adira(int nodes, bool adapter_each) {
  return {.ranks = 8 * nodes,
          .ranks_per_node = 8,
          .rank_bytes_per_s = 300e9,
          .node_bytes_per_s = adapter_each ? 200e9 : 25e9,
          .flops = 312e12,
          .copy_bytes_per_s = 31.5e9};
}
Cluster Valor() {
  return {.ranks = 16,
          .ranks_per_node = 4,
          .rank_bytes_per_s = 150e9,
          .node_bytes_per_s = 7e9,
          .flops = 125e12,
          .copy_bytes_per_s = 15.75e9};
}
struct MpCluster {
  const char *name, *key;
  Cluster cluster;
};
std::vector<MpCluster> Clusters() {
  return {{"Adira, 64 GPUs, 25 GB/s a node", "adira", Adira(8, false)},
          {"Adira, 64 GPUs, 25 GB/s a GPU", "adira_each", Adira(8, true)},
          {"Valor, 16 GPUs, 7 GB/s a node", "valor", Valor()}};
}

// Collectives have no start here, so that the batch is a factor of all times.
MoeLayerShape ShapeOf(const MpModel& model) {
  return {.tokens = 16384, .hidden = model.hidden, .expert_hidden = model.expert_hidden};
}

double PassSeconds(const Cluster& cluster, const MpModel& model, const ExpertParallelOptions& options,
                   pipeline::Pass pass) {
  const absl::StatusOr<double> seconds =
      LayerSeconds(cluster, {}, ShapeOf(model), pipeline::BuildExpertParallel(options), pass);
  SY_CHECK_OK(seconds.status());
  return *seconds;
}

// A training step of a layer.  All make both gradients in one op.
double StepSeconds(const Cluster& cluster, const MpModel& model, ExpertParallelOptions options) {
  options.trains = true;
  options.joint_gradients = true;
  return PassSeconds(cluster, model, options, pipeline::Pass::kForward) +
         PassSeconds(cluster, model, options, pipeline::Pass::kBackward);
}

double FastMoe(const Cluster& cluster, const MpModel& model) { return StepSeconds(cluster, model, {}); }
// Groups of four peers, its default.
double FasterMoe(const Cluster& cluster, const MpModel& model) {
  return StepSeconds(cluster, model,
                     {.micro_batches = cluster.ranks / 4, .dispatch_first = true, .cut = pipeline::Cut::kPeers});
}
// By the best number of chunks; PMoE keeps all rows.
double PMoe(const Cluster& cluster, const MpModel& model, pipeline::RestoreStrategy restore = {}) {
  double best = std::numeric_limits<double>::infinity();
  for (const int chunks : kChunks)
    best = std::min(best, StepSeconds(cluster, model, {.micro_batches = chunks, .restore = restore}));
  return best;
}
// By the best strategy, too.
double MpMoe(const Cluster& cluster, const MpModel& model) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& [name, restore] : kRestores) best = std::min(best, PMoe(cluster, model, restore));
  return best;
}

// Of a step: communication alone, and computing alone; the longer of each pass.
struct MpParts {
  double communication = 0, experts = 0, ideal = 0;
};
MpParts PartsOf(const Cluster& cluster, const MpModel& model) {
  Cluster no_compute = cluster;
  no_compute.flops = 1e30;
  MpParts parts;
  for (const pipeline::Pass pass : {pipeline::Pass::kForward, pipeline::Pass::kBackward}) {
    const ExpertParallelOptions options = {.joint_gradients = true, .trains = true};
    const double communication = PassSeconds(no_compute, model, options, pass);
    const double experts = PassSeconds(cluster, model, options, pass) - communication;
    parts.communication += communication;
    parts.experts += experts;
    parts.ideal += std::max(communication, experts);
  }
  return parts;
}

double MeanOf(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// The same cluster where experts compute as FastMoE and FasterMoE did in the paper.
Cluster AsPublished(Cluster cluster, const MpModel& model) {
  cluster.flops /= model.without_tensor_cores;
  return cluster;
}

void PrintSpeedups(PaperResults* results) {
  std::cout
      << "MPMoE, a layer's training step (fp16, peak rates, no start of a collective), FastMoE's time over "
         "FasterMoE's, PMoE's, MPMoE's; MPMoE over FasterMoE; of max{communication, compute}; as published: MPMoE "
         "over FastMoE, FasterMoE\n";
  PaperFigure figure = {.file = "mpmoe_10.svg", .panels = {}};
  std::vector<double> over_fast, over_faster, of_ideal, slow_over_fast, slow_over_faster;
  for (const auto& [name, key, cluster] : Clusters()) {
    SvgChart chart = {.title = absl::StrCat("MPMoE, Figure 10: ", name, ", simulated"),
                      .x_label = "layer",
                      .y_label = "FastMoE's time over it"};
    chart.series = {{"FastMoE", {}}, {"FasterMoE", {}}, {"PMoE (all rows kept)", {}}, {"MPMoE", {}}};
    for (const MpModel& model : kModels) {
      const double fast = FastMoe(cluster, model),
                   times[] = {fast, FasterMoe(cluster, model), PMoe(cluster, model), MpMoe(cluster, model)};
      chart.categories.emplace_back(model.name);
      for (size_t i = 0; i < std::size(times); ++i) chart.series[i].values.push_back(fast / times[i]);
      over_fast.push_back(fast / times[3]);
      over_faster.push_back(times[1] / times[3]);
      of_ideal.push_back(PartsOf(cluster, model).ideal / times[3]);
      const Cluster slow = AsPublished(cluster, model);
      slow_over_fast.push_back(FastMoe(slow, model) / times[3]);
      slow_over_faster.push_back(FasterMoe(slow, model) / times[3]);
      std::cout << absl::StrFormat("  %-30s %-6s  %.2f  %.2f  %.2f;  %.2f;  %.2f; as published %.2f, %.2f\n", name,
                                   model.name, fast / times[1], fast / times[2], fast / times[3], over_faster.back(),
                                   of_ideal.back(), slow_over_fast.back(), slow_over_faster.back());
    }
    figure.panels.push_back(chart);
  }
  results->figures.push_back(figure);
  std::cout << absl::StrFormat(
      "  means: over FasterMoE %.2f (MP-1: 1.66), over FastMoE %.2f (MP-2: 2.34), largest over FasterMoE %.2f (MP-3: "
      "2.32), of the ideal %.2f (MP-12: 0.70)\n",
      MeanOf(over_faster), MeanOf(over_fast), *std::max_element(over_faster.begin(), over_faster.end()),
      MeanOf(of_ideal));
  const double slow_most = *std::max_element(slow_over_faster.begin(), slow_over_faster.end());
  std::cout << absl::StrFormat(
      "  as published (experts of FastMoE and FasterMoE without tensor cores, 1.79 to 2.38 times as long, by MP-8): "
      "over "
      "FasterMoE %.2f, over FastMoE %.2f, largest over FasterMoE %.2f\n\n",
      MeanOf(slow_over_faster), MeanOf(slow_over_fast), slow_most);
  results->values.insert(results->values.end(), {{"mp_1", MeanOf(over_faster)},
                                                 {"mp_2", MeanOf(over_fast)},
                                                 {"mp_3", *std::max_element(over_faster.begin(), over_faster.end())},
                                                 {"mp_12", MeanOf(of_ideal)},
                                                 {"mp_1_as_published", MeanOf(slow_over_faster)},
                                                 {"mp_2_as_published", MeanOf(slow_over_fast)},
                                                 {"mp_3_as_published", slow_most}});
}

void PrintStrategies(PaperResults* results) {
  std::cout
      << "MPMoE, GPT-XL on Adira, S1, S2, S3, S4 over PMoE's time, GPUs 8, 32, 64 (MP-14: 8: S1, S2 best; 32, 64: "
         "S4 before S2)\n";
  PaperFigure figure = {.file = "mpmoe_15.svg", .panels = {}};
  for (const bool each : {false, true}) {
    SvgChart chart = {
        .title = absl::StrCat("MPMoE, Figure 15: GPT-XL on Adira, 25 GB/s a ", each ? "GPU" : "node", ", simulated"),
        .x_label = "GPUs",
        .y_label = "time over PMoE's"};
    for (const auto& [name, restore] : kRestores) chart.series.push_back({name, {}});
    std::cout << "  25 GB/s a " << (each ? "GPU: " : "node:");
    for (const int nodes : {1, 4, 8}) {
      chart.categories.push_back(absl::StrCat("N = ", 8 * nodes));
      const double kept = PMoe(Adira(nodes, each), kModels[2]);
      for (size_t s = 0; s < std::size(kRestores); ++s) {
        chart.series[s].values.push_back(PMoe(Adira(nodes, each), kModels[2], kRestores[s].second) / kept);
        std::cout << absl::StrFormat(" %.2f", chart.series[s].values.back());
      }
      std::cout << ";";
    }
    std::cout << "\n";
    figure.panels.push_back(chart);
  }
  results->figures.push_back(figure);
  std::cout << "\n";
}

PaperFigure BreakdownFigure() {
  SvgChart chart = {.title = "MPMoE, Figure 16: a step on Valor, simulated",
                    .x_label = "",
                    .y_label = "seq(n = 1) = 1",
                    .kind = ChartKind::kStackedBars};
  chart.series = {{"communication", {}}, {"experts", {}}, {"both, overlapped", {}}};
  for (const MpModel& model : {kModels[1], kModels[2]}) {
    const MpParts parts = PartsOf(Valor(), model);
    const double whole = parts.communication + parts.experts;
    const auto bar = [&](const char* name, double communication, double experts, double both) {
      chart.categories.push_back(absl::StrCat(model.name, " ", name));
      chart.series[0].values.push_back(communication / whole);
      chart.series[1].values.push_back(experts / whole);
      chart.series[2].values.push_back(both / whole);
    };
    bar("seq(n = 1)", parts.communication, parts.experts, 0);
    bar("MPMoE", 0, 0, MpMoe(Valor(), model));
    bar("max of both", 0, 0, parts.ideal);
  }
  return {.file = "mpmoe_16.svg", .panels = {chart}};
}

using StepTime = double (*)(const Cluster&, const MpModel&);

// Of N nodes over N times one's, mean over the layers.
double ScalingOf(StepTime seconds, int nodes, bool adapter_each, double of_peak) {
  std::vector<double> shares;
  for (const MpModel& model : kModels) {
    Cluster one = Adira(1, adapter_each), all = Adira(nodes, adapter_each);
    one.flops *= of_peak;
    all.flops *= of_peak;
    shares.push_back(seconds(one, model) / seconds(all, model));
  }
  return MeanOf(shares);
}

void PrintScaling(PaperResults* results) {
  std::cout << "MPMoE, Adira, throughput of N nodes over one's (share of N), mean of the layers: MPMoE, FasterMoE, "
               "FastMoE (MP-13, 8 nodes: MPMoE 5.76 (72 %), FasterMoE 5.4)\n";
  PaperFigure figure = {.file = "mpmoe_17.svg", .panels = {}};
  const std::pair<const char*, StepTime> systems[] = {{"MPMoE", MpMoe}, {"FasterMoE", FasterMoe}, {"FastMoE", FastMoe}};
  for (const bool each : {false, true}) {
    SvgChart chart = {
        .title = absl::StrCat("MPMoE, Figure 17: Adira, 25 GB/s a ", each ? "GPU" : "node", ", simulated"),
        .x_label = "nodes",
        .y_label = "throughput over N x one's"};
    for (const auto& [name, seconds] : systems) chart.series.push_back({name, {}});
    chart.line = 0.72;
    chart.line_name = "published of 8 nodes, MPMoE";
    const auto print = [&](int nodes, double of_peak) {
      std::cout << absl::StrFormat("  25 GB/s a %-5s %3.0f %% of peak, %2d nodes, %3d GPUs:", each ? "GPU," : "node,",
                                   100 * of_peak, nodes, 8 * nodes);
      std::vector<double> shares;
      for (const auto& [name, seconds] : systems) {
        shares.push_back(ScalingOf(seconds, nodes, each, of_peak));
        std::cout << absl::StrFormat("  %5.2f (%3.0f %%)", nodes * shares.back(), 100 * shares.back());
      }
      std::cout << "\n";
      return shares;
    };
    for (const int nodes : {1, 2, 4, 8, 16, 32}) {
      chart.categories.push_back(absl::StrCat(nodes));
      const std::vector<double> shares = print(nodes, 1);
      for (size_t i = 0; i < shares.size(); ++i) chart.series[i].values.push_back(shares[i]);
      if (nodes == 8) results->values.emplace_back(each ? "mp_13_adapter_each" : "mp_13", nodes * shares[0]);
    }
    print(8, 0.5);
    figure.panels.push_back(chart);
  }
  results->figures.push_back(figure);
  std::cout << "\n";
}

// Elements, by the paper's Equations (1) to (6): states of a rank's expert and gate, activations, buffers.
double StatesOf(const MpModel& model) { return 4 * (kExperts * model.hidden + 2 * model.hidden * model.expert_hidden); }
double PipelineRows(const MpModel& model, double tokens) {  // Equation (4), activations; buffers are as much
  return tokens * (4 * model.hidden + model.expert_hidden);
}
double Phi(const MpModel& model, double tokens, int n) {  // Equation (6)
  const double saved = 2 * tokens * (2 * model.hidden * (n - 2) / n + model.expert_hidden * (n - 1) / n);
  return saved / (StatesOf(model) + 2 * PipelineRows(model, tokens));
}
// What the program's slots hold, with its input, its result and their gradients.
double ProgramElements(const MpModel& model, double tokens, int n, pipeline::RestoreStrategy restore) {
  const pipeline::MoeSchedule schedule =
      pipeline::BuildExpertParallel({.micro_batches = n, .trains = true, .restore = restore});
  double rows = 4 * tokens * model.hidden;
  for (int k = 0; k < pipeline::kNumBufferKinds; ++k) {
    const auto kind = static_cast<BufferKind>(k);
    const bool hidden = kind == BufferKind::kHidden || kind == BufferKind::kHiddenGradient;
    rows += schedule.NumSlots(kind) * tokens / n * (hidden ? model.expert_hidden : model.hidden);
  }
  return StatesOf(model) + rows;
}

void PrintMemory(PaperResults* results) {
  PaperFigure shares = {.file = "mpmoe_2.svg", .panels = {}};
  SvgChart kept = {.title = "MPMoE, Figure 11: memory over PMoE's (Equation 4), slots of our programs (S4)",
                   .x_label = "layer (tokens of a GPU)",
                   .y_label = "PMoE = 1"};
  for (const int n : kChunks) kept.series.push_back({absl::StrCat("n = ", n), {}});
  double least = 1;
  for (const MpModel& model : kModels) {
    SvgChart chart = {.title = absl::StrCat("MPMoE, Figure 2: ", model.name, ", by the paper's Equations (1) to (3)"),
                      .x_label = "tokens of a GPU",
                      .y_label = "share of memory",
                      .kind = ChartKind::kStackedBars};
    chart.series = {{"model states", {}}, {"activations", {}}, {"temporary buffers", {}}};
    for (int tokens = 256; tokens <= 16384; tokens *= 2) {
      const double activations = PipelineRows(model, tokens), buffers = tokens * (model.hidden + model.expert_hidden);
      const double all = StatesOf(model) + activations + buffers;
      chart.categories.push_back(absl::StrCat(tokens));
      chart.series[0].values.push_back(StatesOf(model) / all);
      chart.series[1].values.push_back(activations / all);
      chart.series[2].values.push_back(buffers / all);
    }
    shares.panels.push_back(chart);
    for (const int tokens : {4096, 8192, 16384, 32768}) {
      kept.categories.push_back(absl::StrCat(model.name, " (", tokens, ")"));
      const double all = StatesOf(model) + 2 * PipelineRows(model, tokens);
      for (size_t i = 0; i < std::size(kChunks); ++i) {
        const double of = ProgramElements(model, tokens, kChunks[i], kRestores[3].second) / all;
        kept.series[i].values.push_back(of);
        for (const auto& [name, restore] : kRestores) {
          const double saved = 1 - ProgramElements(model, tokens, kChunks[i], restore) / all;
          least = std::min(least, saved / Phi(model, tokens, kChunks[i]));
        }
      }
    }
  }
  std::cout
      << "MPMoE, memory below PMoE's, mean over layers and 4096 to 32768 tokens, by our programs' slots, n = 2, 4, "
         "8:";
  for (const ChartSeries& series : kept.series)
    std::cout << absl::StrFormat(" %.0f %%", 100 * (1 - MeanOf(series.values)));
  std::cout << absl::StrFormat(
      " (MP-4: 23, 34, 38 %%); of Equation (6)'s at least %.2f with any strategy (MP-6: 0.95)\n\n", least);
  results->values.emplace_back("mp_6", least);
  results->figures.push_back(shares);
  results->figures.push_back({.file = "mpmoe_11.svg", .panels = {kept}});
}

}  // namespace

void PrintMpmoe(PaperResults* results) {
  PrintSpeedups(results);
  PrintMemory(results);
  PrintStrategies(results);
  results->figures.push_back(BreakdownFigure());
  PrintScaling(results);
}

}  // namespace switchyard::bench
