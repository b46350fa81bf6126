// A worker's experts under --placement=MODE: the machine's expert file, the rank's slots, and the group's load
// balancer.  With --expert_memory, too, slots for a part of them, which a cache policy fills
// (workers/moe/placement/cached_expert_host.h).
//
// Slots stay from group to group; what the next one wants and is not there is copied when it begins.
// Thread-compatible: the worker's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/offload/expert_budget.h"
#include "scheduler/placement/background/group_placement.h"
#include "scheduler/placement/placement_settings.h"
#include "workers/moe/experts/timed_copier.h"
#include "workers/moe/placement/cached_expert_host.h"
#include "workers/moe/placement/per_step_balancer.h"
#include "workers/moe/placement/replicated_experts.h"
#include "workers/serving/rank_expert_file.h"
#include "workers/serving/rank_experts.h"

namespace switchyard::worker {

struct RankPlacementInput {
  RankExpertFileInput file;
  placement::PlacementSettings settings;
  int rank = 0;
  int world = 1;
  offload::ExpertBudgetOptions experts;  // the rate is there also without a budget
  std::vector<int64_t> popularity = {};  // as in RankExpertsInput
};

// Slots of a rank's store.  Without a budget: residents, replicas of the background balancer and what arrives for it,
// spare slots of the per-step balancer; with one a part of them.  InvalidArgument: ExpertSlots'.
absl::StatusOr<int> PlacedSlots(const RankPlacementInput& input);

class RankPlacement {
 public:
  // Opens the file, building it if nobody has, and takes the slots, which are empty yet.  Blocks.
  // Errors: PlacedSlots', the file's, the loader's.  REQUIRES: a mode but static, checked settings, a model with
  // experts.
  static absl::StatusOr<std::unique_ptr<RankPlacement>> Open(const RankPlacementInput& input,
                                                             moe::ExpertFile::Progress progress);

  // A group begins with this placement: makes its load balancer and fills the slots.  Blocks.
  // Errors: InvalidArgument (not this model's shape; a mode that cannot serve), ExpertHost::Fill's.
  absl::Status Begin(const placement::GroupPlacement& placement, moe::ExpertHost::Progress progress);
  void End() { balancer_.reset(); }
  // Null outside of a group.
  moe::PerStepBalancer* balancer() { return balancer_.get(); }
  // Checked against the model; then PerStepBalancer::Prepare.
  // REQUIRES: balancer() is not null.
  absl::Status Prepare(placement::Migration migration);

  // How fast experts are copied here.
  const moe::TimedCopier& copier() const { return *copier_; }
  // A layout with as many slots a rank as any layer ever has.
  moe::ExpertLayout SlotsOfLayer() const;
  // The provider that the model's layers compute from.
  moe::ExpertWeightProvider* experts();
  // RankExperts'; without a budget migrations look (ReplicatedExperts).
  bool found_damage() const { return budgeted_ != nullptr && budgeted_->found_damage(); }
  // With all of the model's experts.
  const moe::ExpertFile& file() const { return budgeted_ != nullptr ? budgeted_->file() : *file_; }
  int64_t slot_bytes() const;
  // Counts of the copies that the placement asked for: none under a budget, whose policy asks for them
  // (expert_counters).
  moe::ExpertHostCounters counters() const {
    return placed_ == nullptr ? moe::ExpertHostCounters() : placed_->counters();
  }
  moe::ExpertOffloadCounters expert_counters() const {
    return budgeted_ == nullptr ? moe::ExpertOffloadCounters() : budgeted_->counters();
  }
  moe::ColdCounters cold_counters() const {
    return budgeted_ == nullptr ? moe::ColdCounters() : budgeted_->cold_counters();
  }

 private:
  explicit RankPlacement(const RankPlacementInput& input);
  placement::PlacementBounds Bounds() const;

  const placement::PlacementSettings settings_;
  const int rank_, world_;
  const int num_layers_, num_experts_, top_k_;
  absl::Status MakeSlots(const RankPlacementInput& input, moe::ExpertFile::Progress progress);

  std::unique_ptr<moe::ExpertFile> file_;           // without a budget
  std::unique_ptr<moe::ReplicatedExperts> placed_;  // copies from the file
  std::unique_ptr<RankExperts> budgeted_;           // with one
  std::unique_ptr<moe::CachedExpertHost> table_;    // borrows its slots
  const moe::TimedCopier* copier_ = nullptr;        // of these copies
  moe::ExpertHost* slots_ = nullptr;                // one of both
  std::unique_ptr<moe::PerStepBalancer> balancer_;  // borrows slots_
};

}  // namespace switchyard::worker
