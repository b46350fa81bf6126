// Invariants that must hold in a scheduler between any two calls.
#pragma once

#include "scheduler/batching/block_pool.h"
#include "scheduler/batching/scheduler.h"

namespace switchyard::batching {

struct Invariants {
  // Aborts if the free list, the counts and the index disagree.
  static void Check(const BlockPool& pool);
  // Aborts if queue, slots, block tables and reference counts disagree.
  static void Check(const Scheduler& scheduler);
};

}  // namespace switchyard::batching
