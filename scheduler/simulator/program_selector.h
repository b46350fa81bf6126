// Chooses the program of a MoE layer: of those that builders make for a mesh (ProgramOptions), the one that ends first
// on a cluster, by the event simulator.  Given the latencies and bandwidths that were fitted on the actual links, all
// ranks choose alike.  Pure.  Source: Parm, Algorithm 1 (which compares S1 and S2), extended to other builders and
// numbers of chunks.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "scheduler/simulator/cluster.h"
#include "scheduler/simulator/program_costs.h"

namespace switchyard::simulator {

struct ProgramOption {
  std::string name;  // as tests/bench/schedules/named_program.h has them: "ep:4", "parm:s1@2x4"
  pipeline::MoeSchedule schedule;
  double forward_s = 0, backward_s = 0;
};

// One rank's rows alone: expert parallelism in 1, 2, 4, 8 chunks of rows, or cut by peers.  Copies or shards:
// DeepSpeed-MoE's program, Parm's S1, S2 (AAS, SAA); without shards also PPMoE's slicing.  All train.
std::vector<ProgramOption> ProgramOptions(int ranks, const MoeMesh& mesh);

// Prices the options and sorts them: the first is the choice; of equal ones the first stays first.
// Errors: ProgramCosts::Check's.
absl::StatusOr<std::vector<ProgramOption>> SelectProgram(const Cluster& cluster, const MoeMesh& mesh,
                                                         const MoeLayerShape& shape,
                                                         std::vector<ProgramOption> options);

}  // namespace switchyard::simulator
