// The groups of ranks that a trainer computes with: all ranks, and those among which rows travel to experts.
//
// With packing p, each of p groups of world / p ranks has all experts (expert_groups.h).  Sums are over:
//   losses, statistics, gradients of what every rank has   world
//   gradients of experts                                   replicas, then all of them have the same bits
//   their norm, in which an expert counts once             experts
// The three share connections, and an error of one ends all (Communicator::Split); calls of one class are made on one
// thread, in the same order on all ranks.  All pointers are borrowed.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/dispatch/expert_layout.h"

namespace switchyard::train {

struct TrainerGroup {
  comm::Communicator* world = nullptr;        // all ranks: each has its own rows of data
  comm::Communicator* experts = nullptr;      // world itself without packing
  comm::Communicator* replicas = nullptr;     // null: every expert is on one rank
  const moe::ExpertLayout* layout = nullptr;  // of `experts`: each expert on one of its ranks
};

// held: the experts of this rank's model, in order.  InvalidArgument if the layout gives this rank other experts, or
// the numbers of ranks do not fit; Unimplemented if an expert is on several of the layout's ranks.
absl::Status CheckTrainerGroup(const TrainerGroup& group, absl::Span<const int32_t> held);

}  // namespace switchyard::train
