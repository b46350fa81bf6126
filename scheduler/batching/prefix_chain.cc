#include "scheduler/batching/prefix_chain.h"

#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"

namespace switchyard::batching {
namespace {

// Mixes a value into a running hash.
uint64_t Mix(uint64_t hash, uint64_t value) { return SplitMix(hash ^ value); }

uint64_t HashRoot(const PrefixRoot& root) {
  uint64_t hash =
      Mix(root.weights_version, uint64_t{2} * static_cast<uint32_t>(root.adapter) + (root.long_rope ? 1 : 0));
  for (const char c : root.salt) hash = Mix(hash, static_cast<unsigned char>(c));
  return Mix(hash, root.salt.size());
}

}  // namespace

PrefixChain::PrefixChain(PrefixRoot root, int32_t block_size)
    : root_(std::move(root)), block_size_(block_size), root_hash_(HashRoot(root_)) {
  SY_CHECK_GE(block_size, 1);
}

void PrefixChain::Extend(absl::Span<const int32_t> tokens) {
  while ((hashes_.size() + 1) * block_size_ <= tokens.size()) {
    uint64_t hash = hashes_.empty() ? root_hash_ : hashes_.back();
    for (const int32_t token : tokens.subspan(hashes_.size() * block_size_, block_size_)) {
      hash = Mix(hash, static_cast<uint32_t>(token));
    }
    hashes_.push_back(hash);
  }
}

}  // namespace switchyard::batching
