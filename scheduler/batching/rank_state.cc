#include "scheduler/batching/rank_state.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard::batching {

RankState::RankState(int32_t num_slots, int32_t num_blocks, int32_t block_size) : pool(num_blocks, block_size) {
  for (SlotId slot = 0; slot < num_slots; ++slot) free_slots.insert(slot);
}

void RankState::Insert(Sequence* sequence) {
  const auto at = std::upper_bound(running.begin(), running.end(), sequence,
                                   [](const Sequence* a, const Sequence* b) { return a->arrival() < b->arrival(); });
  running.insert(at, sequence);
}

void RankState::Erase(Sequence* sequence) {
  const auto at = std::find(running.begin(), running.end(), sequence);
  SY_CHECK(at != running.end());
  running.erase(at);
}

void RankState::Release(Sequence* sequence) {
  SY_CHECK_EQ(sequence->num_in_flight(), 0);
  pool.Rollback(&sequence->block_table, 0);
  free_slots.insert(sequence->slot);
  freed_slots.push_back(sequence->slot);
  sequence->slot = -1;
  sequence->rank = -1;
  sequence->num_published = 0;
  sequence->published_content = 0;
  sequence->sent_blocks = 0;
}

}  // namespace switchyard::batching
