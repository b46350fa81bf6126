// What GetExperts tells, copied from the engine: cheap, as what is large is shared.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/placement/background/expert_report.h"
#include "scheduler/popularity/expert_load_stats.h"
#include "server/balancer/background_balancer.h"

namespace switchyard::server {

// A worker's last word; null: it has not said anything since its group formed.
struct ReceivedReport {
  std::shared_ptr<const placement::ExpertReport> report;  // shared with whoever asked for a copy
  absl::Time at = absl::InfinitePast();
};

struct ExpertsCopy {
  popularity::ExpertLoadStats load_stats;
  ResidencyView placement;
  std::vector<ReceivedReport> reports;  // [R]; empty: no group stands
};

}  // namespace switchyard::server
