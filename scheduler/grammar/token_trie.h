// The tokens of a vocabulary as a trie of their bytes, laid out in the order of a walk through it.
//
// Thread-safe: constant after it is made; share one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace switchyard::grammar {

class TokenTrie {
 public:
  // A prefix that some token has.  Nodes are sorted so that all behind a prefix follow it directly.
  struct Node {
    uint8_t byte = 0;        // the last of the prefix
    uint8_t num_tokens = 0;  // whose bytes are this prefix: first_token, first_token + 1 … of `order`
    uint16_t depth = 1;      // bytes of the prefix
    int32_t skip = 0;        // the next node that is not behind this prefix
    int32_t first_token = 0;
  };
  // Longer tokens are left out, so no grammar allows them.
  static constexpr size_t kMaxTokenBytes = 256;

  // `bytes`: of each token of the vocabulary; empty for one that stands for no text (special tokens).
  explicit TokenTrie(std::vector<std::string> bytes);

  int32_t vocab_size() const { return static_cast<int32_t>(bytes_.size()); }
  // Empty: no text, or left out.  An id outside of the vocabulary has none either.
  absl::string_view BytesOf(int32_t token) const {
    return token >= 0 && token < vocab_size() ? absl::string_view(bytes_[token]) : absl::string_view();
  }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<int32_t>& order() const { return order_; }

 private:
  std::vector<std::string> bytes_;
  std::vector<int32_t> order_;
  std::vector<Node> nodes_;
};

}  // namespace switchyard::grammar
