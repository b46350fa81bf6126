// What the scheduler keeps about one rank: its pool, its slots, and who runs there.  Plain state: the decisions are the
// scheduler's.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_set.h"
#include "scheduler/batching/block_pool.h"
#include "scheduler/batching/sequence.h"
#include "scheduler/batching/step.h"

namespace switchyard::batching {

struct RankState {
  RankState(int32_t num_slots, int32_t num_blocks, int32_t block_size);

  // Adds to `running`, in order of arrival.
  void Insert(Sequence* sequence);
  void Erase(Sequence* sequence);
  // The sequence gives its slot and blocks back.  REQUIRES: nothing in flight.
  void Release(Sequence* sequence);

  BlockPool pool;
  std::vector<Sequence*> running;      // by arrival; not the finished ones
  absl::btree_set<SlotId> free_slots;  // the lowest is taken first
  std::vector<SlotId> freed_slots;     // since the last plan: travel with the next one
  int32_t num_leaving = 0;             // sequences that give blocks back as soon as nothing of them is in flight
};

}  // namespace switchyard::batching
