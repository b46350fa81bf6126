// A worker's experts under --placement=MODE: the machine's expert file, the rank's slots, and the group's placer.
//
// Slots stay from group to group; what the next one wants and is not there is copied when it begins.
// Thread-compatible: the worker's thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/placement/group_placement.h"
#include "scheduler/placement/placement_settings.h"
#include "workers/moe/decided_placer.h"
#include "workers/moe/placed_experts.h"
#include "workers/moe/timed_copier.h"
#include "workers/rank_expert_file.h"

namespace switchyard {

struct RankPlacementInput {
  RankExpertFileInput file;
  PlacementSettings settings;
  int rank = 0;
  int world = 1;
  double copy_bytes_per_second = 0;  // > 0: an emulated link
};

// Slots of a rank's store: residents, replicas of the slow loop and what arrives for it, spare slots of the fast loop.
int PlacedSlots(const PlacementSettings& settings, const ModelConfig& config, int world);

class RankPlacement {
 public:
  // Opens the file, building it if nobody has, and takes the slots, which are empty yet.  Blocks.
  // Errors: the file's, the loader's.  REQUIRES: a mode but static, checked settings, a model with experts.
  static absl::StatusOr<std::unique_ptr<RankPlacement>> Open(const RankPlacementInput& input,
                                                             ExpertFile::Progress progress);

  // A group begins with this placement: makes its placer and fills the slots.  Blocks.
  // Errors: InvalidArgument (not this model's shape; a mode that cannot serve), PlacedExperts::Fill's.
  absl::Status Begin(const GroupPlacement& placement, PlacedExperts::Progress progress);
  void End() { placer_.reset(); }
  // Null outside of a group.
  DecidedPlacer* placer() { return placer_.get(); }
  // Checked against the model; then DecidedPlacer::Prepare.
  // REQUIRES: placer() is not null.
  absl::Status Prepare(PlacementStage stage);

  // How fast experts are copied here.
  const TimedCopier& copier() const { return *copier_; }
  PlacedExperts* experts() { return experts_.get(); }
  // A layout with as many slots a rank as any layer ever has.
  ExpertLayout SlotsOfLayer() const;

 private:
  explicit RankPlacement(const RankPlacementInput& input);
  PlacementBounds Bounds() const;

  const PlacementSettings settings_;
  const int rank_, world_;
  const int num_layers_, num_experts_, top_k_;
  std::unique_ptr<ExpertFile> file_;
  std::unique_ptr<PlacedExperts> experts_;  // copies from the file
  const TimedCopier* copier_ = nullptr;     // experts_ has it
  std::unique_ptr<DecidedPlacer> placer_;   // borrows experts_
};

}  // namespace switchyard
