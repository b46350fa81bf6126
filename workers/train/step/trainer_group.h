// The ranks that a trainer works with: all of them, and those among which rows travel to experts.
//
// With packing p the experts are on world / p ranks and there p times (expert_groups.h).  Sums are over:
//   losses, statistics, gradients of what every rank has   world
//   gradients of experts                                   replicas, then all of them have the same bits
//   their norm, in which an expert counts once             experts
// The three share connections, order and fate (Communicator::Split): calls of one class are made on one thread, in the
// same order on all ranks.  All is borrowed.
#pragma once

#include "workers/comm/core/communicator.h"
#include "workers/moe/dispatch/expert_layout.h"

namespace switchyard::train {

struct TrainerGroup {
  comm::Communicator* world = nullptr;        // rows of data are dealt out to
  comm::Communicator* experts = nullptr;      // world itself without packing
  comm::Communicator* replicas = nullptr;     // null: every expert is on one rank
  const moe::ExpertLayout* layout = nullptr;  // of `experts`: each expert on one of its ranks
};

}  // namespace switchyard::train
