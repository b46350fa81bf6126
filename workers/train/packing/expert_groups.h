// The groups of packing p on R ranks: p groups of R / p neighbouring ranks; each group has every expert once.
//
// Rank r is at place r % (R / p) of group r / (R / p); a group divides experts as ExpertLayout::Contiguous does, so
// ranks at one place are replicas of each other.  Neighbours are often on one machine, so the all-to-alls of small
// groups stay within it.  p = 1 is no packing, p = R plain data parallelism.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/train/step/trainer_group.h"

namespace switchyard::train {

// InvalidArgument unless packing is 1 or more and divides world.
absl::Status CheckPacking(int world, int packing);
// The experts of a rank, by slot.  REQUIRES: CheckPacking.  Pure.
std::vector<int32_t> PackedResidents(int num_experts, int world, int packing, int rank);

// Thread-compatible.
class ExpertGroups {
 public:
  // Collective over the world, which is borrowed; packing above 1 takes two of its few splits (communicator.h).
  // Errors: CheckPacking's; those of Split.
  static absl::StatusOr<std::unique_ptr<ExpertGroups>> Make(comm::Communicator* world, int num_experts, int packing,
                                                            absl::Time deadline);
  ExpertGroups(const ExpertGroups&) = delete;
  ExpertGroups& operator=(const ExpertGroups&) = delete;

  int packing() const { return packing_; }
  const TrainerGroup& group() const { return group_; }

 private:
  ExpertGroups(comm::Communicator* world, int num_experts, int packing);

  const int packing_;
  const moe::ExpertLayout layout_;
  std::unique_ptr<comm::Communicator> experts_, replicas_;  // null without packing
  TrainerGroup group_;
};

}  // namespace switchyard::train
