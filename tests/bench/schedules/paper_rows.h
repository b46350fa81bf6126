// The papers' rows (scheduler/PAPERS.md) that the simulator can produce, printed beside the published values, and
// their figures as charts.
//
// Inputs are what the papers state of their clusters and models, and peak rates of the hardware that they name;
// nothing is fitted to what is compared.  Deterministic.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "scheduler/simulator/program_costs.h"
#include "tests/bench/schedules/svg_chart.h"

namespace switchyard::bench {

struct PaperFigure {
  std::string file;  // "parm_7.svg"
  std::vector<SvgChart> panels;
};

struct PaperResults {
  std::vector<std::pair<std::string, double>> values = {};  // of the line of JSON
  std::vector<PaperFigure> figures = {};
};

// Seconds of one pass of a layer.  Errors: InputOfLayer's and Simulate's.
absl::StatusOr<double> LayerSeconds(const simulator::Cluster& cluster, const simulator::MoeMesh& mesh,
                                    const simulator::MoeLayerShape& shape, const pipeline::MoeSchedule& schedule,
                                    pipeline::Pass pass);

// Parm: Table IV, Table III's grid, PA-2, PA-3, PA-6, PA-7; Figures 1, 6, 7.
void PrintParm(PaperResults* results);
// MPMoE: MP-1 to MP-4, MP-6, MP-12 to MP-14; Figures 2, 10, 11, 15 to 17.
void PrintMpmoe(PaperResults* results);
// Lina's inference: LI-16 to LI-21, and the same on more GPUs.
void PrintLina(PaperResults* results);

}  // namespace switchyard::bench
