// One rank's paged KV cache as the scheduler sees it: which block belongs to whom, and which still holds a prefix.
//
// Blocks are reference-counted.  A complete block can be published under its hash; when nobody refers to it any more it
// stays findable until it is reused, least recently used first (unpublished blocks go before all others).  Only full
// blocks are shared, so nothing is copied on write.
//
// Exact: a published block stores its tokens and the identity of its predecessor's content (or the root), and a lookup
// compares both.  A 64-bit collision costs a hit, never an answer.  Thread-compatible; holds no device memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "scheduler/batching/prefix_chain.h"
#include "scheduler/batching/step.h"

namespace switchyard::batching {

// The result of a lookup: the leading blocks of a sequence.
struct PrefixMatch {
  std::vector<BlockId> blocks;
  int32_t num_unreferenced = 0;  // of those, in nobody's table now: taking them lowers num_free()
  uint64_t content = 0;          // content id of the last one; 0 = none
};

class BlockPool {
 public:
  // `hash_mask` is for tests: fewer bits make collisions.  REQUIRES: num_blocks >= 1, block_size >= 1.
  BlockPool(int32_t num_blocks, int32_t block_size, uint64_t hash_mask = ~uint64_t{0});

  // The longest run of published blocks that holds the beginning of `tokens`, at most `max_blocks`.
  PrefixMatch Lookup(const PrefixChain& chain, absl::Span<const int32_t> tokens, int32_t max_blocks) const;

  // Appends the match's blocks to an empty table, with a reference each.
  void Take(const PrefixMatch& match, std::vector<BlockId>* table);

  // Appends `num_blocks` blocks of no content to the table.  False, and nothing is done, if that many are not free.
  [[nodiscard]] bool Allocate(int32_t num_blocks, std::vector<BlockId>* table);

  // Gives back the table's blocks from index `keep` on, the last first, so that a prefix's head outlives its tail.
  void Rollback(std::vector<BlockId>* table, int32_t keep);

  // Makes block `index` of the chain, held in `block`, findable, also for another content of its hash.  `parent`: the
  // content id of block index-1 (0 for the first).  Returns its content id: that of an equal block if there is one.
  uint64_t Publish(BlockId block, const PrefixChain& chain, absl::Span<const int32_t> tokens, int32_t index,
                   uint64_t parent);

  // Makes a block unfindable (its content turned out bad).  Its references stay.
  void Forget(BlockId block);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_free() const { return num_free_; }  // unreferenced, published or not
  int32_t num_used() const { return num_blocks() - num_free_; }
  int32_t num_cached() const { return num_cached_free_; }  // unreferenced and published
  int32_t references(BlockId block) const { return blocks_[block].references; }
  int64_t num_evictions() const { return num_evictions_; }

 private:
  friend struct Invariants;  // of tests
  struct Block {
    int32_t references = 0;
    int32_t prev = -1;  // neighbours in the free list
    int32_t next = -1;
    uint64_t hash = 0;
    uint64_t content = 0;  // 0 = not published
    uint64_t parent = 0;
    std::vector<int32_t> tokens;
    PrefixRoot root;  // of a first block
  };

  bool Holds(const Block& block, const PrefixChain& chain, absl::Span<const int32_t> tokens, int32_t index,
             uint64_t parent) const;
  void PushFree(BlockId id);
  void RemoveFree(BlockId id);

  const int32_t block_size_;
  const uint64_t hash_mask_;
  std::vector<Block> blocks_;  // [P]
  int32_t head_ = -1;          // of the free list: reused first
  int32_t tail_ = -1;
  int32_t num_free_ = 0;
  int32_t num_cached_free_ = 0;
  int64_t num_evictions_ = 0;
  uint64_t next_content_ = 1;
  absl::flat_hash_map<uint64_t, BlockId> index_;  // masked hash → published block
};

}  // namespace switchyard::batching
