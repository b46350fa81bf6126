// What GetExperts tells, copied from the engine: cheap, as what is large is shared.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/placement/background/expert_report.h"
#include "scheduler/popularity/expert_census.h"
#include "server/balancer/residency_loop.h"

namespace switchyard {

// A worker's last word; null: it has not said anything since its group formed.
struct ToldReport {
  std::shared_ptr<const ExpertReport> report;  // shared with whoever asked for a copy
  absl::Time at = absl::InfinitePast();
};

struct ExpertsCopy {
  ExpertCensus census;
  ResidencyView placement;
  std::vector<ToldReport> reports;  // [R]; empty: no group stands
};

}  // namespace switchyard
