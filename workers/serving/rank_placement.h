// A worker's experts under --placement=MODE: the machine's expert file, the rank's slots, and the group's load
// balancer.
//
// Slots stay from group to group; what the next one wants and is not there is copied when it begins.
// Thread-compatible: the worker's thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/placement/placement_settings.h"
#include "workers/moe/experts/summed_copier.h"
#include "workers/moe/experts/timed_copier.h"
#include "workers/moe/placement/per_step_balancer.h"
#include "workers/moe/placement/replicated_experts.h"
#include "workers/serving/rank_expert_file.h"

namespace switchyard::worker {

struct RankPlacementInput {
  RankExpertFileInput file;
  placement::PlacementSettings settings;
  int rank = 0;
  int world = 1;
  double copy_bytes_per_second = 0;  // > 0: an emulated link
};

// Slots of a rank's store: residents, and spare slots.
int PlacedSlots(const RankPlacementInput& input);

class RankPlacement {
 public:
  // Opens the file, building it if nobody has, and takes the slots, which are empty yet.  Blocks.
  // Errors: the file's, the loader's, the store's.  REQUIRES: settings with slots, checked; a model with experts.
  static absl::StatusOr<std::unique_ptr<RankPlacement>> Open(const RankPlacementInput& input,
                                                             moe::ExpertFile::Progress progress);

  // A group begins: makes its load balancer and fills the slots, which steps on this stream will read.  Blocks.
  // Errors: InvalidArgument (a mode that cannot serve), ReplicatedExperts::Fill's and Stand's.
  absl::Status Begin(const Stream& stream, moe::ReplicatedExperts::Progress progress);
  void End() { balancer_.reset(); }
  // Null outside of a group.
  moe::PerStepBalancer* balancer() { return balancer_.get(); }

  // Whether bytes that were copied were not the file's as it was made: it has to be discarded.
  bool found_damage() const { return summed_->found_damage(); }
  // How fast experts are copied here.
  const moe::TimedCopier& copier() const { return *copier_; }
  // A layout with as many slots a rank as any layer ever has.
  moe::ExpertLayout SlotsOfLayer() const;
  // The provider that the model's layers compute from.
  moe::ExpertWeightProvider* experts() { return slots_.get(); }
  // With all of the model's experts.
  const moe::ExpertFile& file() const { return *file_; }
  int64_t slot_bytes() const { return slots_->bytes(); }
  // Counts of the copies that the placement asked for.
  moe::ReplicatedExpertsCounters counters() const { return slots_->counters(); }

 private:
  explicit RankPlacement(const RankPlacementInput& input);

  const placement::PlacementSettings settings_;
  const int rank_, world_;
  const int num_layers_, num_experts_, top_k_;

  std::unique_ptr<moe::ExpertFile> file_;
  std::unique_ptr<moe::ReplicatedExperts> slots_;  // copies from the file
  const moe::TimedCopier* copier_ = nullptr;       // of these copies, as the next
  const moe::SummedCopier* summed_ = nullptr;
  std::unique_ptr<moe::PerStepBalancer> balancer_;  // borrows slots_
};

}  // namespace switchyard::worker
