#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/check.h"
#include "scheduler/pipeline/build_parm.h"
#include "scheduler/simulator/program_costs.h"
#include "tests/bench/schedules/paper_rows.h"

namespace switchyard::bench {
namespace {

using pipeline::ParmKind;
using pipeline::Pass;
using simulator::Cluster;
using simulator::MoeLayerShape;
using simulator::MoeMesh;

double Seconds(const Cluster& cluster, const MoeMesh& mesh, const MoeLayerShape& shape, ParmKind kind, Pass pass) {
  const absl::StatusOr<double> seconds =
      LayerSeconds(cluster, mesh, shape, pipeline::BuildParm({.kind = kind, .trains = true}), pass);
  SY_CHECK_OK(seconds.status());
  return *seconds;
}

double TrainingSeconds(const Cluster& cluster, const MoeMesh& mesh, const MoeLayerShape& shape, ParmKind kind) {
  return Seconds(cluster, mesh, shape, kind, Pass::kForward) + Seconds(cluster, mesh, shape, kind, Pass::kBackward);
}

// Forward of the three programs, where computing takes no time.
struct Cell {
  double baseline = 0, s1 = 0, s2 = 0;
};

Cell ParmCell(const Cluster& cluster, int shards, int copies, const MoeLayerShape& shape) {
  const auto seconds = [&](ParmKind kind) {
    return Seconds(cluster, {.shards = shards, .copies = copies}, shape, kind, Pass::kForward);
  };
  return {seconds(ParmKind::kBaseline), seconds(ParmKind::kS1), seconds(ParmKind::kS2)};
}

// Testbed B: four RTX 2080 Ti a node on PCIe 3, 100 Gb/s between nodes.  A: eight RTX 4090 in one machine.
Cluster TestbedB(int ranks) {
  return {.ranks = ranks, .ranks_per_node = 4, .rank_bytes_per_s = 12e9, .node_bytes_per_s = 12.5e9, .flops = 1e30};
}
Cluster TestbedA() { return {.ranks = 8, .ranks_per_node = 8, .rank_bytes_per_s = 12e9, .flops = 1e30}; }
// Peak FLOP/s of their GPUs in fp32.
constexpr double kFlopsA = 82.6e12, kFlopsB = 13.45e12;

// Table IV: speedups of S1 and S2 over DeepSpeed-MoE, mean over configurations; by bytes they depend on k f alone.
struct Published {
  int copies, shards;
  std::array<double, 4> s1, s2;  // A; B with 8, 16, 32
};
constexpr Published kTableIv[] = {{2, 2, {2.10, 2.62, 2.46, 2.72}, {1.99, 2.42, 2.20, 2.57}},
                                  {2, 4, {2.24, 3.37, 2.85, 2.85}, {2.41, 3.05, 2.44, 2.75}},
                                  {4, 2, {3.72, 4.18, 4.12, 3.92}, {3.21, 3.58, 3.81, 4.10}},
                                  {4, 4, {4.19, 5.77, 5.08, 4.57}, {4.12, 5.38, 4.82, 4.91}}};
constexpr double kCapacities[] = {1.2, 2.4};      // Table III; k is not stated, 1 here
constexpr double kWidths[] = {1024, 2048, 4096};  // of an expert, over N_ESP

MoeLayerShape GridShape(const MoeMesh& mesh, double capacity, double hidden) {
  return {.tokens = 1 << 13,
          .hidden = 2048,
          .expert_hidden = hidden * mesh.shards,
          .rows_per_token = capacity,
          .element_bytes = 4};
}

struct Errors {
  double worst = 0, sum = 0;
  int count = 0;
  void Add(double error) {
    worst = std::max(worst, std::abs(error));
    sum += std::abs(error);
    ++count;
  }
};

Errors PrintTableIv(const std::string& title, const std::vector<std::pair<int, Cluster>>& columns) {
  std::cout << title << "\nN_MP N_ESP GPUs   S1 by bytes, published, off     S2\n";
  Errors errors;
  for (const Published& row : kTableIv) {
    for (const auto& [column, cluster] : columns) {
      double s1 = 0, s2 = 0;
      for (const double capacity : kCapacities) {
        const Cell cell =
            ParmCell(cluster, row.shards, row.copies, {.tokens = 1 << 20, .hidden = 1024, .rows_per_token = capacity});
        s1 += cell.baseline / cell.s1 / std::size(kCapacities);
        s2 += cell.baseline / cell.s2 / std::size(kCapacities);
      }
      const double of_s1 = row.s1[static_cast<size_t>(column)], of_s2 = row.s2[static_cast<size_t>(column)];
      errors.Add(s1 / of_s1 - 1);
      errors.Add(s2 / of_s2 - 1);
      std::cout << absl::StrFormat("%4d %5d %4d        %.2f  %.2f  %+5.1f %%        %.2f  %.2f  %+5.1f %%\n",
                                   row.copies, row.shards, cluster.ranks, s1, of_s1, 100 * (s1 / of_s1 - 1), s2, of_s2,
                                   100 * (s2 / of_s2 - 1));
    }
  }
  std::cout << absl::StrFormat("%d cells: worst %.1f %%, mean %.1f %% off\n\n", errors.count, 100 * errors.worst,
                               100 * errors.sum / errors.count);
  return errors;
}

// Table III's grid on testbed B.  By bytes a point depends on GPUs, N_MP, N_ESP and the capacity factor alone.
struct Grid {
  int points = 0, samples = 0, behind_by_bytes = 0;
  std::map<std::array<int, 3>, int> behind_as_fitted;  // points, by GPUs, N_MP, N_ESP
  double least = 1e9, most = 0, of_44 = 0;             // Parm over the baseline, where anything is cut; 32 GPUs, 4, 4
  std::vector<double> as_fitted_44;                    // likewise, of each point
};
// Published of testbed B's gather among copies, and of A's: seconds, and seconds an element.
constexpr double kAlpha = 1.09e-4, kGatherBeta = 7.14e-10, kAlphaA = 6.64e-4, kGatherBetaA = 5.38e-10;

Grid RunGrid() {
  Grid grid;
  for (const int ranks : {8, 16, 32}) {
    for (const int copies : {1, 2, 4}) {
      for (const int shards : {1, 2, 4}) {
        const Cluster cluster = TestbedB(ranks);
        for (const double capacity : kCapacities) {
          const Cell unit = ParmCell(cluster, shards, copies,
                                     {.tokens = 1, .hidden = 1, .rows_per_token = capacity, .element_bytes = 4});
          ++grid.samples;
          const double gain = unit.baseline / std::min(unit.s1, unit.s2);
          if (std::max(unit.s1, unit.s2) > unit.baseline * (1 + 1e-9)) ++grid.behind_by_bytes;
          if (copies > 1 || shards > 1) {
            grid.least = std::min(grid.least, gain);
            grid.most = std::max(grid.most, gain);
          }
          if (ranks == 32 && copies == 4 && shards == 4) grid.of_44 += gain / std::size(kCapacities);
          for (const int batch : {2, 4, 8}) {
            for (const int length : {512, 1024, 2048}) {
              for (const int hidden : {1024, 2048, 4096}) {  // over N_ESP
                for (int expert_hidden = 0; expert_hidden < 3; ++expert_hidden) {
                  ++grid.points;
                  const double elements = 1.0 * batch * length * hidden * shards;
                  // Of a gather of so many elements, beyond what it takes by bytes.
                  const auto extra = [&](double of) {
                    if (copies == 1) return 0.0;
                    return kAlpha + kGatherBeta * of - 4 * of * (1 - 1.0 / copies) / cluster.rank_bytes_per_s;
                  };
                  const double base = unit.baseline * elements + kAlpha * (shards > 1 ? 4 : 2);
                  const double s1 = unit.s1 * elements + 2 * kAlpha + extra(elements);
                  const double s2 = unit.s2 * elements + 2 * kAlpha + extra(capacity * elements);
                  if (std::max(s1, s2) > base * (1 + 1e-9)) ++grid.behind_as_fitted[{ranks, copies, shards}];
                  if (ranks == 32 && copies == 4 && shards == 4) grid.as_fitted_44.push_back(base / std::min(s1, s2));
                }
              }
            }
          }
        }
      }
    }
  }
  return grid;
}

// Parm over the baseline on 32 GPUs with N_MP = N_ESP = 4, a training step at peak FLOP/s, by capacity and an expert's
// width; the grid's other sizes change nothing.
std::vector<double> GainsWithExperts() {
  Cluster cluster = TestbedB(32);
  cluster.flops = kFlopsB;
  const MoeMesh mesh = {.shards = 4, .copies = 4};
  std::vector<double> gains;
  for (const double capacity : kCapacities) {
    for (const double hidden : kWidths) {
      const MoeLayerShape shape = GridShape(mesh, capacity, hidden);
      gains.push_back(TrainingSeconds(cluster, mesh, shape, ParmKind::kBaseline) /
                      std::min(TrainingSeconds(cluster, mesh, shape, ParmKind::kS1),
                               TrainingSeconds(cluster, mesh, shape, ParmKind::kS2)));
    }
  }
  return gains;
}

void PrintGrid(const Grid& grid, PaperResults* results) {
  std::cout << "Parm, Table III's grid on testbed B: " << grid.points << " points, which bytes make " << grid.samples
            << " (the paper ran 1296 of them, by a rule that it does not give)\n"
            << "  S1 or S2 behind the baseline: by bytes in " << grid.behind_by_bytes << " of " << grid.samples
            << "; with the published start and rate of the gather among copies, as long a start for every other "
               "collective, and "
               "these by bytes, in points (GPUs, N_MP, N_ESP): ";
  int behind = 0;
  for (const auto& [mesh, count] : grid.behind_as_fitted) {
    std::cout << absl::StrFormat("%d, %d, %d: %d; ", mesh[0], mesh[1], mesh[2], count);
    behind += count;
  }
  std::cout << "all: " << behind << "\n"
            << absl::StrFormat(
                   "  the better of S1 and S2 over the baseline where anything is cut: %.2f to %.2f (PA-2: 1.13 to "
                   "5.77)\n",
                   grid.least, grid.most)
            << absl::StrFormat("  32 GPUs, N_MP = N_ESP = 4: %.2f", grid.of_44);
  for (const auto& [name, gains] : {std::pair{"with that start and rate", grid.as_fitted_44},
                                    {"with experts at fp32's peak", GainsWithExperts()}}) {
    double sum = 0;
    for (const double gain : gains) sum += gain;
    const auto above = std::count_if(gains.begin(), gains.end(), [](double gain) { return gain > 4; });
    std::cout << absl::StrFormat("; %s %.2f, above 4 in %.0f %%", name, sum / static_cast<double>(gains.size()),
                                 100.0 * static_cast<double>(above) / static_cast<double>(gains.size()));
  }
  std::cout << " (PA-6: 4.91, above 4 in 89 %)\n";
  results->values.insert(results->values.end(),
                         {{"grid_points", grid.points}, {"grid_samples", grid.samples}, {"behind_as_fitted", behind}});
}

// How many of each series are in each of the bins that begin at first, first + width, ...; the first takes all below,
// the last all above.
PaperFigure HistogramOf(const std::string& file, SvgChart chart, double first, double width, int bins) {
  for (int bin = 0; bin < bins; ++bin) chart.categories.push_back(absl::StrFormat("%g", first + width * bin));
  chart.y_label = "share of configurations";
  for (ChartSeries& series : chart.series) {
    std::vector<double> shares(static_cast<size_t>(bins));
    for (const double value : series.values)
      shares[static_cast<size_t>(std::clamp((value - first) / width, 0.0, bins - 1.0))] +=
          1.0 / static_cast<double>(series.values.size());
    series.values = shares;
  }
  return {.file = file, .panels = {chart}};
}

// The baseline's collectives, of a training step of one layer.  Width and tokens are the same factor in all of it.
void PrintShares(PaperResults* results) {
  std::vector<double> shares;
  for (const int copies : {1, 2, 4}) {
    for (const int shards : {1, 2, 4}) {
      if (copies == 1 && shards == 1) continue;
      for (const double capacity : kCapacities) {
        for (const double hidden : kWidths) {
          Cluster cluster = TestbedB(32);
          const MoeMesh mesh = {.shards = shards, .copies = copies};
          const MoeLayerShape shape = GridShape(mesh, capacity, hidden);
          const double moves = TrainingSeconds(cluster, mesh, shape, ParmKind::kBaseline);
          cluster.flops = kFlopsB;
          shares.push_back(100 * moves / TrainingSeconds(cluster, mesh, shape, ParmKind::kBaseline));
        }
      }
    }
  }
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  std::cout << absl::StrFormat(
      "Parm, share of communication in the baseline's layer, 32 GPUs at fp32's peak (13.45 TFLOP/s), where anything "
      "is cut: %.1f to %.1f %% (PA-3: 67.9 to 96.0 %%)\n",
      *least, *most);
  results->values.insert(results->values.end(), {{"pa_3_least", *least / 100}, {"pa_3_most", *most / 100}});
  results->figures.push_back(HistogramOf(
      "parm_1.svg",
      {.title = "Parm, Figure 1: share of communication, baseline, 32 GPUs, simulated (published: 68 to 96 %)",
       .x_label = "communication of the layer's time, %, from",
       .series = {{"bytes, and FLOP/s at their peak", shares}}},
      60, 4, 10));
}

// Table V: a whole model of 12 blocks with N_MP = N_ESP = 4.  A block's attention is cut among the copies, which sum
// its rows once a pass.  Batches are not stated; all times grow with them alike.
void PrintTableV(PaperResults* results) {
  struct Row {
    const char *model, *key;
    double length;  // tokens; the model's own longest
    Cluster cluster;
    double flops, published;
  };
  const Row rows[] = {{"BERT-Base A", "pa_7_bert_a", 512, TestbedA(), kFlopsA, 3.06},
                      {"BERT-Base B", "pa_7_bert_b", 512, TestbedB(32), kFlopsB, 2.98},
                      {"GPT-2     A", "pa_7_gpt2_a", 1024, TestbedA(), kFlopsA, 3.08},
                      {"GPT-2     B", "pa_7_gpt2_b", 1024, TestbedB(32), kFlopsB, 3.15}};
  std::cout
      << "Parm, Table V, the better of S1 and S2 over DeepSpeed-MoE: a MoE layer, with attention, published of an "
         "iteration\n";
  for (Row row : rows) {
    row.cluster.flops = row.flops;
    const MoeMesh mesh = {.shards = 4, .copies = 4};
    double layers[2] = {}, blocks[2] = {};  // baseline, Parm
    for (const double capacity : kCapacities) {
      const MoeLayerShape shape = {.tokens = 8 * row.length,
                                   .hidden = 768,
                                   .expert_hidden = 3072,
                                   .rows_per_token = capacity,
                                   .element_bytes = 4};
      const double products = shape.tokens * (8 * shape.hidden * shape.hidden + 4 * row.length * shape.hidden);
      const double sum = simulator::SecondsAlone(
          row.cluster, simulator::Ring(row.cluster, {0, 1, 2, 3}, shape.tokens * shape.hidden * 4 / mesh.copies, 2));
      const double attention = 3 * products / mesh.copies / row.flops + 2 * sum;
      const double taken[2] = {TrainingSeconds(row.cluster, mesh, shape, ParmKind::kBaseline),
                               std::min(TrainingSeconds(row.cluster, mesh, shape, ParmKind::kS1),
                                        TrainingSeconds(row.cluster, mesh, shape, ParmKind::kS2))};
      for (size_t i = 0; i < 2; ++i) {
        layers[i] += taken[i];
        blocks[i] += taken[i] + attention;
      }
    }
    std::cout << absl::StrFormat("  %s  %.2f  %.2f  %.2f\n", row.model, layers[0] / layers[1], blocks[0] / blocks[1],
                                 row.published);
    results->values.emplace_back(row.key, blocks[0] / blocks[1]);
  }
  std::cout << "\n";
}

PaperFigure GathersFigure() {
  SvgChart chart = {.title = "Parm, Figure 6: the gather among 4 copies, as published (alpha + beta x), and by bytes",
                    .x_label = "elements of the result, millions",
                    .y_label = "ms",
                    .kind = ChartKind::kLines};
  chart.series = {{"A, published", {}}, {"B, published", {}}, {"by bytes, 12 GB/s", {}}};
  const Cluster cluster = TestbedB(4);
  for (int millions = 0; millions <= 16; millions += 2) {
    const double elements = 1e6 * millions;
    chart.categories.push_back(absl::StrCat(millions));
    chart.series[0].values.push_back(1e3 * (kAlphaA + kGatherBetaA * elements));
    chart.series[1].values.push_back(1e3 * (kAlpha + kGatherBeta * elements));
    chart.series[2].values.push_back(
        1e3 * simulator::SecondsAlone(cluster, simulator::Ring(cluster, {0, 1, 2, 3}, elements * 4 / 4, 1)));
  }
  return {.file = "parm_6.svg", .panels = {chart}};
}

}  // namespace

void PrintParm(PaperResults* results) {
  const Errors b =
      PrintTableIv("Parm, Table IV, testbed B, by bytes on its two tiers (12 GB/s a GPU, 12.5 GB/s a node, k = 1)",
                   {{1, TestbedB(8)}, {2, TestbedB(16)}, {3, TestbedB(32)}});
  const Errors a = PrintTableIv(
      "The same, testbed A: one machine, whose GPUs share PCIe by switches and compute more beside it, which no byte "
      "says",
      {{0, TestbedA()}});
  const Grid grid = RunGrid();
  const auto verdict = [](const char* name, double value, double limit) {
    std::cout << absl::StrFormat("%s %.3f of %.2f: %s\n", name, value, limit, value <= limit ? "met" : "MISSED");
  };
  results->values.insert(results->values.end(), {{"parm_never_slower", grid.behind_by_bytes == 0 ? 1 : 0},
                                                 {"table_iv_worst", b.worst},
                                                 {"table_iv_mean", b.sum / b.count},
                                                 {"table_iv_a_worst", a.worst}});
  PrintGrid(grid, results);
  PrintShares(results);
  PrintTableV(results);
  results->figures.push_back(GathersFigure());
  results->figures.push_back(HistogramOf(
      "parm_7.svg",
      {.title = "Parm, Figure 7: over DeepSpeed-MoE, 32 GPUs, N_MP = N_ESP = 4, simulated (published mean 4.91)",
       .x_label = "times as fast, from",
       .series = {{"bytes, and FLOP/s at their peak", GainsWithExperts()},
                  {"published start and rate of the gather, no FLOP/s", grid.as_fitted_44}}},
      3.8, 0.1, 12));
  std::cout << "parm_never_slower: " << (grid.behind_by_bytes == 0 ? "met" : "MISSED") << "\n";
  verdict("table_iv_worst", b.worst, 0.17);
  verdict("table_iv_mean", b.sum / b.count, 0.08);
  std::cout << "\n";
}

}  // namespace switchyard::bench
