// The names of a sequence's full KV blocks: hash of block i = H(hash of block i-1, its tokens); the first block's
// predecessor is the root (tenant salt, weights version, long RoPE, adapter), and only sequences of equal roots share
// blocks.
//
// A hash only finds candidates: BlockPool compares tokens and predecessors, so a collision cannot return another
// prompt's block.  Deterministic over processes.  Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::batching {

// Under which name blocks may be shared.
struct PrefixRoot {
  std::string salt;  // the tenant's; requests of different salts never share
  uint64_t weights_version = 0;
  bool long_rope = false;  // the prompt is one of GroupShape::long_rope_above
  int32_t adapter = 0;     // as SlotInit's

  bool operator==(const PrefixRoot&) const = default;
};

class PrefixChain {
 public:
  PrefixChain(PrefixRoot root, int32_t block_size);

  // Hashes the blocks that `tokens` (the whole sequence; only ever appended to) has filled since the last call.
  void Extend(absl::Span<const int32_t> tokens);

  const PrefixRoot& root() const { return root_; }
  int32_t block_size() const { return block_size_; }
  // [full blocks]
  const std::vector<uint64_t>& hashes() const { return hashes_; }

 private:
  PrefixRoot root_;
  int32_t block_size_;
  uint64_t root_hash_;
  std::vector<uint64_t> hashes_;
};

}  // namespace switchyard::batching
