#include "scheduler/grammar/token_trie.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace switchyard::grammar {

TokenTrie::TokenTrie(std::vector<std::string> bytes) : bytes_(std::move(bytes)), order_(bytes_.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  for (std::string& token : bytes_) {
    if (token.size() > kMaxTokenBytes) token.clear();
  }
  std::stable_sort(order_.begin(), order_.end(), [this](int32_t a, int32_t b) { return bytes_[a] < bytes_[b]; });
  std::vector<int32_t> open;  // nodes of the current token's prefixes
  absl::string_view last;
  for (size_t i = 0; i < order_.size(); ++i) {
    const absl::string_view token = bytes_[order_[i]];
    if (token.empty()) continue;
    size_t common = 0;
    while (common < std::min(last.size(), token.size()) && last[common] == token[common]) ++common;
    // More equal tokens than a node counts get a node of the same prefix, without anything behind it.
    if (common == token.size() && nodes_[open[common - 1]].num_tokens == UINT8_MAX) --common;
    for (; open.size() > common; open.pop_back()) nodes_[open.back()].skip = static_cast<int32_t>(nodes_.size());
    for (size_t at = common; at < token.size(); ++at) {
      open.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back({.byte = static_cast<uint8_t>(token[at]),
                        .depth = static_cast<uint16_t>(at + 1),
                        .first_token = static_cast<int32_t>(i)});
    }
    ++nodes_[open.back()].num_tokens;
    last = token;
  }
  for (const int32_t node : open) nodes_[node].skip = static_cast<int32_t>(nodes_.size());
}

}  // namespace switchyard::grammar
