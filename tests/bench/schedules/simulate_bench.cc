// Prices programs of MoE layers by the simulator.
//
//   simulate_bench --programs=ep:4,parm:s1@2x4
//       a line of JSON each: ms of forward, of backward, of a dispatch by itself.  --cluster=FILE replaces --ranks and
//       the other flags of a cluster; --trace=FILE has the first program's forward, for chrome://tracing
//   simulate_bench --select=2x4
//       forward and backward of all that the selector knows for so many shards and copies, its choice first
//   simulate_bench --papers --svg=DIR
//       the papers' rows beside the published values (paper_rows.h), and their figures as files in DIR, which is there
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
ABSL_FLAG(bool, quick, false, "changes nothing, as there are no rounds; every benchmark takes it");
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

absl::StatusOr<Cluster> ReadCluster() {
  const std::string path = absl::GetFlag(FLAGS_cluster);
  if (path.empty()) return ClusterOfFlags(absl::GetFlag(FLAGS_ranks));
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return simulator::ParseCluster(text);
}

absl::Status PricePrograms() {
  ASSIGN_OR_RETURN(const Cluster cluster, ReadCluster());
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

absl::Status Select() {
  const std::string groups = absl::GetFlag(FLAGS_select);
  ASSIGN_OR_RETURN(const NamedProgram named, ParseProgram("ep:1@" + groups));
  ASSIGN_OR_RETURN(const Cluster cluster, ReadCluster());
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

absl::Status PrintPapers(const std::string& folder) {
  PaperResults results;
  PrintParm(&results);
  PrintMpmoe(&results);
  PrintLina(&results);
  for (const PaperFigure& figure : results.figures) {
    const std::string path = absl::StrCat(folder, "/", figure.file);
    if (!folder.empty() && !(std::ofstream(path) << ToSvg(figure.panels)))
      return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
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
  const bool selects = !absl::GetFlag(FLAGS_select).empty();
  const absl::Status status = absl::GetFlag(FLAGS_papers) ? switchyard::bench::PrintPapers(absl::GetFlag(FLAGS_svg))
                              : selects                   ? switchyard::bench::Select()
                                                          : switchyard::bench::PricePrograms();
  if (!status.ok()) std::cerr << "simulate_bench: " << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
