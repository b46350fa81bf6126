#include "tests/scheduler/batching/invariants.h"

#include <algorithm>
#include <vector>

#include "scheduler/base/check.h"

namespace switchyard::batching {

void Invariants::Check(const BlockPool& pool) {
  int32_t free = 0, cached = 0, unreferenced = 0, published = 0;
  int32_t prev = -1;
  for (BlockId id = pool.head_; id >= 0; prev = id, id = pool.blocks_[id].next) {
    const BlockPool::Block& block = pool.blocks_[id];
    SY_CHECK_EQ(block.prev, prev);
    SY_CHECK_EQ(block.references, 0);
    ++free;
    cached += block.content != 0;
    SY_CHECK_LE(free, pool.num_blocks());
  }
  SY_CHECK_EQ(prev, pool.tail_);
  for (BlockId id = 0; id < pool.num_blocks(); ++id) {
    const BlockPool::Block& block = pool.blocks_[id];
    SY_CHECK_GE(block.references, 0);
    unreferenced += block.references == 0;
    if (block.content == 0) continue;
    ++published;
    const auto entry = pool.index_.find(block.hash);
    SY_CHECK(entry != pool.index_.end());
    SY_CHECK_EQ(entry->second, id);
  }
  SY_CHECK_EQ(free, pool.num_free_);
  SY_CHECK_EQ(cached, pool.num_cached_free_);
  SY_CHECK_EQ(unreferenced, pool.num_free_);
  SY_CHECK_EQ(published, static_cast<int32_t>(pool.index_.size()));
}

void Invariants::Check(const Scheduler& scheduler) {
  const RunningSequences& running = scheduler.running_;
  const WaitingQueue& waiting = scheduler.waiting_;
  std::vector<std::vector<int32_t>> references;
  std::vector<size_t> num_slots(running.ranks_.size(), 0);
  for (const RankState& rank : running.ranks_) references.emplace_back(rank.pool.num_blocks(), 0);
  int64_t waiting_tokens = 0;
  int32_t num_waiting = 0;
  for (const auto& [sequence, owned] : scheduler.requests_.sequences_) {
    if (sequence->state() == SequenceState::kWaiting) {
      ++num_waiting;
      waiting_tokens += sequence->num_tokens();
      SY_CHECK(waiting.by_arrival_.contains(sequence->arrival()));
      SY_CHECK(sequence->block_table.empty());
      continue;
    }
    SY_CHECK(sequence->state() == SequenceState::kRunning || sequence->num_in_flight() > 0);
    ++num_slots[sequence->rank];
    SY_CHECK(!running.ranks_[sequence->rank].free_slots.contains(sequence->slot));
    for (const BlockId block : sequence->block_table) ++references[sequence->rank][block];
  }
  SY_CHECK_EQ(num_waiting, waiting.size());
  SY_CHECK_EQ(waiting_tokens, waiting.num_tokens());
  for (size_t r = 0; r < running.ranks_.size(); ++r) {
    const BlockPool& pool = running.ranks_[r].pool;
    Check(pool);
    SY_CHECK_EQ(num_slots[r] + running.ranks_[r].free_slots.size(),
                static_cast<size_t>(scheduler.policy_.max_num_seqs));
    SY_CHECK_EQ(num_slots[r], running.ranks_[r].running.size() + running.ranks_[r].num_leaving -
                                  std::count_if(running.ranks_[r].running.begin(), running.ranks_[r].running.end(),
                                                [](const Sequence* s) { return s->draining; }));
    for (BlockId b = 0; b < pool.num_blocks(); ++b) SY_CHECK_EQ(pool.references(b), references[r][b]);
  }
}

}  // namespace switchyard::batching
