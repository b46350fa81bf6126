#include "scheduler/batching/block_pool.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard::batching {
namespace {

absl::Span<const int32_t> TokensOf(const PrefixChain& chain, absl::Span<const int32_t> tokens, int32_t index) {
  const size_t size = chain.block_size();
  SY_CHECK_LE((index + 1) * size, tokens.size());
  return tokens.subspan(index * size, size);
}

}  // namespace

BlockPool::BlockPool(int32_t num_blocks, int32_t block_size, uint64_t hash_mask)
    : block_size_(block_size), hash_mask_(hash_mask) {
  SY_CHECK_GE(num_blocks, 1);
  SY_CHECK_GE(block_size, 1);
  blocks_.resize(num_blocks);
  for (BlockId id = num_blocks - 1; id >= 0; --id) PushFree(id);  // unpublished ones go to the head: 0 is taken first
}

PrefixMatch BlockPool::Lookup(const PrefixChain& chain, absl::Span<const int32_t> tokens, int32_t max_blocks) const {
  SY_CHECK_EQ(chain.block_size(), block_size_);
  PrefixMatch match;
  const int32_t limit = std::min(max_blocks, static_cast<int32_t>(chain.hashes().size()));
  for (int32_t index = 0; index < limit; ++index) {
    const auto found = index_.find(chain.hashes()[index] & hash_mask_);
    if (found == index_.end()) break;
    const Block& block = blocks_[found->second];
    if (!Holds(block, chain, tokens, index, match.content)) break;
    match.blocks.push_back(found->second);
    match.num_unreferenced += block.references == 0;
    match.content = block.content;
  }
  return match;
}

void BlockPool::Take(const PrefixMatch& match, std::vector<BlockId>* table) {
  SY_CHECK(table->empty());
  for (const BlockId id : match.blocks) {
    Block& block = blocks_[id];
    SY_CHECK_NE(block.content, 0u);
    if (block.references == 0) RemoveFree(id);
    ++block.references;
    table->push_back(id);
  }
}

bool BlockPool::Allocate(int32_t num_blocks, std::vector<BlockId>* table) {
  if (num_blocks > num_free_) return false;
  for (int32_t i = 0; i < num_blocks; ++i) {
    const BlockId id = head_;
    Block& block = blocks_[id];
    RemoveFree(id);
    block.references = 1;
    if (block.content != 0) {
      Forget(id);
      ++num_evictions_;
    }
    table->push_back(id);
  }
  return true;
}

void BlockPool::Rollback(std::vector<BlockId>* table, int32_t keep) {
  while (static_cast<int32_t>(table->size()) > keep) {
    Block& block = blocks_[table->back()];
    SY_CHECK_GE(block.references, 1);
    if (--block.references == 0) PushFree(table->back());
    table->pop_back();
  }
}

uint64_t BlockPool::Publish(BlockId id, const PrefixChain& chain, absl::Span<const int32_t> tokens, int32_t index,
                            uint64_t parent) {
  Block& block = blocks_[id];
  SY_CHECK_GE(block.references, 1);
  SY_CHECK_EQ(block.content, 0u);
  SY_CHECK_EQ(parent == 0, index == 0);
  const uint64_t hash = chain.hashes()[index] & hash_mask_;
  if (const auto found = index_.find(hash); found != index_.end()) {
    const Block& other = blocks_[found->second];
    if (Holds(other, chain, tokens, index, parent)) return other.content;
    // The hash has another content, or the same below an evicted predecessor, which no lookup finds: the newcomer
    // takes the hash.
    Forget(found->second);
  }
  index_[hash] = id;
  const absl::Span<const int32_t> own = TokensOf(chain, tokens, index);
  block.hash = hash;
  block.content = next_content_++;
  block.parent = parent;
  block.tokens.assign(own.begin(), own.end());
  if (index == 0) block.root = chain.root();
  return block.content;
}

void BlockPool::Forget(BlockId id) {
  Block& block = blocks_[id];
  if (block.content == 0) return;
  const bool listed = block.references == 0;
  if (listed) RemoveFree(id);
  index_.erase(block.hash);
  block.content = 0;
  block.parent = 0;
  block.tokens.clear();
  block.root = PrefixRoot();
  if (listed) PushFree(id);
}

bool BlockPool::Holds(const Block& block, const PrefixChain& chain, absl::Span<const int32_t> tokens, int32_t index,
                      uint64_t parent) const {
  return block.content != 0 && block.parent == parent &&
         absl::MakeConstSpan(block.tokens) == TokensOf(chain, tokens, index) &&
         (index > 0 || block.root == chain.root());
}

void BlockPool::PushFree(BlockId id) {
  Block& block = blocks_[id];
  ++num_free_;
  if (block.content != 0) {  // used last: reused last
    ++num_cached_free_;
    block.prev = tail_;
    block.next = -1;
    (tail_ >= 0 ? blocks_[tail_].next : head_) = id;
    tail_ = id;
  } else {
    block.prev = -1;
    block.next = head_;
    (head_ >= 0 ? blocks_[head_].prev : tail_) = id;
    head_ = id;
  }
}

void BlockPool::RemoveFree(BlockId id) {
  Block& block = blocks_[id];
  --num_free_;
  if (block.content != 0) --num_cached_free_;
  (block.prev >= 0 ? blocks_[block.prev].next : head_) = block.next;
  (block.next >= 0 ? blocks_[block.next].prev : tail_) = block.prev;
  block.prev = block.next = -1;
}

}  // namespace switchyard::batching
