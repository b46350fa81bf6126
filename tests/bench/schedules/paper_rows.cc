#include "tests/bench/schedules/paper_rows.h"

#include "scheduler/base/status_macros.h"
#include "scheduler/simulator/event_simulator.h"

namespace switchyard::bench {

absl::StatusOr<double> LayerSeconds(const simulator::Cluster& cluster, const simulator::MoeMesh& mesh,
                                    const simulator::MoeLayerShape& shape, const pipeline::MoeSchedule& schedule,
                                    pipeline::Pass pass) {
  ASSIGN_OR_RETURN(const simulator::SimInput input, simulator::InputOfLayer(cluster, mesh, shape, schedule, pass));
  ASSIGN_OR_RETURN(const simulator::SimResult result, simulator::Simulate(input));
  return result.seconds;
}

}  // namespace switchyard::bench
