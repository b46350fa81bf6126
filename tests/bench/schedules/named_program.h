// Programs of MoE layers by name, as benchmarks' flags have them: "ep:4", "ep:4:S1", "parm:s2:8@2x4".
//
//   ep:N              expert parallelism in N chunks (build_expert_parallel.h), and with :first all dispatches first,
//                     :turn one dispatch at a time, :peers chunks cut by peers, :joint both gradients at once,
//                     :S1 to :S4 rows restored as MPMoE does; :queue: a collective begins when the one before is over,
//                     as on one communicator of NCCL
//   parm:baseline, parm:s1, parm:s2, parm:s2:PARTS
//                     build_parm.h
//   sliced:sum, sliced:gather
//                     build_sliced.h
// then @SHARDSxCOPIES where ranks are in groups.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "scheduler/simulator/program_costs.h"

namespace switchyard::bench {

struct NamedProgram {
  std::string name;
  pipeline::MoeSchedule schedule = {};  // that trains
  simulator::MoeMesh mesh = {};
  bool one_queue = false;  // of collectives
};

// InvalidArgument: no program's name.
absl::StatusOr<NamedProgram> ParseProgram(absl::string_view name);

}  // namespace switchyard::bench
