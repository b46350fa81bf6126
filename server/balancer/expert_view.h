// The answer of GetExperts: experts' load and placement.  Pure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/placement/per_step/expert_report.h"
#include "scheduler/placement/placement_mode.h"
#include "scheduler/popularity/expert_load_stats.h"
#include "switchyard/v1/admin.pb.h"

namespace switchyard::server {

// A worker's last report; null: it has not reported since its group formed.
struct ReceivedReport {
  std::shared_ptr<const placement::ExpertReport> report;  // shared with copies for GetExperts
  absl::Time at = absl::InfinitePast();
};

// The input of GetExperts, copied from the engine; reports are shared.
struct ExpertsCopy {
  popularity::ExpertLoadStats load_stats;
  placement::PlacementMode mode = placement::PlacementMode::kStatic;
  int num_workers = 1;                  // of the last group
  bool in_place = false;                // any of them can compute any expert
  std::vector<ReceivedReport> reports;  // [R]; empty without a group
  // Experts of all layers for which a worker's --expert_memory has room; 0: for all.
  int budget_slots = 0;
};

// INVALID_ARGUMENT (BAD_FIELD): a layer outside [0, num_moe_layers) or named twice; an expert outside [0, num_experts).
absl::Status CheckExpertsRequest(const v1::GetExpertsRequest& request, int num_moe_layers, int num_experts);

// Describes the layers that the request names, in its order; all if it names none.  REQUIRES: CheckExpertsRequest
// passed; reports have the load statistics' layers and experts.
v1::GetExpertsResponse DescribeExperts(const v1::GetExpertsRequest& request, const ExpertsCopy& experts,
                                       absl::Time now);

// Explains in sentences where an expert is: its counts, and the spare slots that held it last.
std::string WhyThere(const ExpertsCopy& experts, int layer, int expert, absl::Time now);

}  // namespace switchyard::server
