// The flags of a MoE layer and of a cluster, which schedule_worker and simulate_bench have in common.
#pragma once

#include "scheduler/simulator/cluster.h"
#include "scheduler/simulator/program_costs.h"

namespace switchyard::bench {

simulator::MoeLayerShape LayerShapeOfFlags();
// Experts' forward of ep:1 takes --experts_ms on it.
simulator::Cluster ClusterOfFlags(int ranks);

}  // namespace switchyard::bench
