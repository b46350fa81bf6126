// Prices programs of MoE layers by the simulator.
//
//   simulate_bench --programs=ep:4,parm:s1@2x4
//       a line of JSON each: ms of forward, of backward, of a dispatch by itself.  --cluster=FILE replaces --ranks and
//       the other flags of a cluster; --trace=FILE has the first program's forward, for chrome://tracing
<<<<<<< HEAD
//   simulate_bench --select=2x4
//       the same of all that the selector knows for so many shards and copies, its choice first
//   simulate_bench --papers
//       Parm's tables by bytes beside the published values
#include <array>
=======
//   simulate_bench --papers --svg=DIR
//       the papers' rows beside the published values (paper_rows.h), and their figures as files in DIR, which is there
>>>>>>> 265c87d6 (simulate: MPMoE's and Lina's rows, Parm's Table V, figures)
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/simulator/chrome_trace.h"
#include "scheduler/simulator/program_costs.h"
#include "scheduler/simulator/program_selector.h"
#include "tests/bench/schedules/named_program.h"
#include "tests/bench/schedules/paper_rows.h"
#include "tests/bench/schedules/shape_flags.h"

ABSL_FLAG(int, ranks, 8, "");
ABSL_FLAG(std::vector<std::string>, programs, {}, "named_program.h");
ABSL_FLAG(std::string, select, "", "SHARDSxCOPIES: of the programs that the selector knows");
ABSL_FLAG(std::string, trace, "", "file");
ABSL_FLAG(std::string, cluster, "",
          "file (scheduler/simulator/cluster.h); empty: by --ranks and the flags of a cluster");
ABSL_FLAG(bool, papers, false, "");
ABSL_FLAG(std::string, svg, "", "folder for the papers' figures");

namespace switchyard::bench {
namespace {

using pipeline::Pass;
using simulator::Cluster;
using simulator::MoeLayerShape;

absl::StatusOr<double> SecondsOf(const Cluster& cluster, const NamedProgram& program, const MoeLayerShape& shape,
                                 Pass pass, const std::string& trace) {
  ASSIGN_OR_RETURN(const simulator::SimInput input,
                   simulator::InputOfLayer(cluster, program.mesh, shape, program.schedule, pass));
  ASSIGN_OR_RETURN(const simulator::SimResult result, simulator::Simulate(input));
  if (!trace.empty() && !(std::ofstream(trace) << simulator::ChromeTrace(input, result)))
    return absl::UnavailableError(absl::StrCat(trace, ": cannot be written"));
  return result.seconds;
}

absl::Status PricePrograms() {
  Cluster cluster = ClusterOfFlags(absl::GetFlag(FLAGS_ranks));
  if (const std::string path = absl::GetFlag(FLAGS_cluster); !path.empty()) {
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
    ASSIGN_OR_RETURN(cluster, simulator::ParseCluster(text));
  }
  const MoeLayerShape shape = LayerShapeOfFlags();
  std::string trace = absl::GetFlag(FLAGS_trace);
  for (const std::string& text : absl::GetFlag(FLAGS_programs)) {
    ASSIGN_OR_RETURN(const NamedProgram program, ParseProgram(text));
    Cluster with_queue = cluster;
    if (program.one_queue) with_queue.peers_apart = false;
    double seconds[2];
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      ASSIGN_OR_RETURN(seconds[static_cast<size_t>(pass)],
                       SecondsOf(with_queue, program, shape, pass, std::exchange(trace, "")));
    }
    std::vector<int> all;
    for (int rank = 0; rank < cluster.ranks; ++rank) all.push_back(rank);
    const double per_peer = shape.tokens * shape.rows_per_token * shape.hidden / cluster.ranks;
    const double dispatch = simulator::SecondsAlone(cluster, simulator::AllToAll(cluster, all, per_peer));
    std::cout << absl::StrFormat(R"({"program": "%s", "forward_ms": %.4f, "backward_ms": %.4f, "dispatch_ms": %.4f})",
                                 text, 1e3 * seconds[0], 1e3 * seconds[1], 1e3 * dispatch)
              << std::endl;
  }
  return absl::OkStatus();
}

<<<<<<< HEAD
absl::Status Select() {
  const std::string groups = absl::GetFlag(FLAGS_select);
  ASSIGN_OR_RETURN(const NamedProgram named, ParseProgram("ep:1@" + groups));
  const Cluster cluster = ClusterOfFlags(absl::GetFlag(FLAGS_ranks));
  ASSIGN_OR_RETURN(const std::vector<simulator::ProgramOption> options,
                   simulator::SelectProgram(cluster, named.mesh, LayerShapeOfFlags(),
                                            simulator::ProgramOptions(cluster.ranks, named.mesh)));
  for (const simulator::ProgramOption& option : options) {
    std::cout << absl::StrFormat(R"({"program": "%s", "forward_ms": %.4f, "backward_ms": %.4f})", option.name,
                                 1e3 * option.forward_s, 1e3 * option.backward_s)
              << std::endl;
  }
  return absl::OkStatus();
}

// Forward of the three programs, where computing takes no time.
struct Cell {
  double baseline = 0, s1 = 0, s2 = 0;
};

Cell ParmCell(const Cluster& cluster, int shards, int copies, const MoeLayerShape& shape) {
  const auto seconds = [&](ParmKind kind) {
    const absl::StatusOr<double> found = SecondsOf(cluster, {.shards = shards, .copies = copies}, shape,
                                                   pipeline::BuildParm({.kind = kind}), Pass::kForward);
    SY_CHECK_OK(found.status());
    return *found;
  };
  return {seconds(ParmKind::kBaseline), seconds(ParmKind::kS1), seconds(ParmKind::kS2)};
}

// Testbed B: four RTX 2080 Ti a node on PCIe 3, 100 Gb/s between nodes.  A: eight RTX 4090 in one machine.
Cluster TestbedB(int ranks) {
  return {.ranks = ranks, .ranks_per_node = 4, .rank_bytes_per_s = 12e9, .node_bytes_per_s = 12.5e9, .flops = 1e30};
}
Cluster TestbedA() { return {.ranks = 8, .ranks_per_node = 8, .rank_bytes_per_s = 12e9, .flops = 1e30}; }

// Table IV: speedups of S1 and S2 over DeepSpeed-MoE, mean over configurations; by bytes they depend on k f alone.
struct Published {
  int copies, shards;
  std::array<double, 4> s1, s2;  // A; B with 8, 16, 32
};
constexpr Published kTableIv[] = {{2, 2, {2.10, 2.62, 2.46, 2.72}, {1.99, 2.42, 2.20, 2.57}},
                                  {2, 4, {2.24, 3.37, 2.85, 2.85}, {2.41, 3.05, 2.44, 2.75}},
                                  {4, 2, {3.72, 4.18, 4.12, 3.92}, {3.21, 3.58, 3.81, 4.10}},
                                  {4, 4, {4.19, 5.77, 5.08, 4.57}, {4.12, 5.38, 4.82, 4.91}}};
constexpr double kCapacities[] = {1.2, 2.4};  // Table III; k is not stated, 1 here

struct Errors {
  double worst = 0, sum = 0;
  int count = 0;
  void Add(double error) {
    worst = std::max(worst, std::abs(error));
    sum += std::abs(error);
    ++count;
=======
absl::Status PrintPapers(const std::string& folder) {
  PaperResults results;
  PrintParm(&results);
  PrintMpmoe(&results);
  PrintLina(&results);
  for (const PaperFigure& figure : results.figures) {
    const std::string path = absl::StrCat(folder, "/", figure.file);
    if (!folder.empty() && !(std::ofstream(path) << ToSvg(figure.panels)))
      return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
>>>>>>> 265c87d6 (simulate: MPMoE's and Lina's rows, Parm's Table V, figures)
  }
  std::string line;
  for (const auto& [name, value] : results.values)
    absl::StrAppendFormat(&line, "%s\"%s\": %.4g", line.empty() ? "" : ", ", name, value);
  std::cout << "{" << line << "}" << std::endl;
  return absl::OkStatus();
}

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
<<<<<<< HEAD
  if (absl::GetFlag(FLAGS_papers)) {
    switchyard::bench::PrintPapers();
    return 0;
  }
  const bool selects = !absl::GetFlag(FLAGS_select).empty();
  const absl::Status status = selects ? switchyard::bench::Select() : switchyard::bench::PricePrograms();
=======
  const absl::Status status = absl::GetFlag(FLAGS_papers) ? switchyard::bench::PrintPapers(absl::GetFlag(FLAGS_svg))
                                                          : switchyard::bench::PricePrograms();
>>>>>>> 265c87d6 (simulate: MPMoE's and Lina's rows, Parm's Table V, figures)
  if (!status.ok()) std::cerr << "simulate_bench: " << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
