// The tokens of a vocabulary as tries of their bytes, laid out in the order of a walk through all: groups of plain
// text, by length, which many places of a grammar take as a whole; then tokens that are long, or have quotes,
// backslashes, control characters or broken UTF-8.
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
  // How the tokens behind a prefix go on.
  struct Beyond {
    uint64_t ascii[2] = {0, 0};  // the ASCII characters in them
    uint8_t num_chars = 0;       // of the longest; UINT8_MAX: so many, or more
    bool others = false;         // whether they have characters beyond ASCII
    // Whether the prefix ends with a character, and they are UTF-8 (of the last character maybe a part).
    bool whole_chars = false;
  };
  struct Group {
    int32_t first_node = 0, end_node = 0;
    int32_t first_token = 0, num_tokens = 0;  // of `order`
    Beyond beyond;                            // where none of the tokens is begun
    std::string bits;                         // its tokens, as TokenMask has them
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
  const std::vector<Group>& groups() const { return groups_; }
  const Beyond& beyond(int32_t node) const { return beyond_[node]; }
  const std::vector<int32_t>& order() const { return order_; }
  // The end, in `order`, of the tokens that have this prefix; they begin at its first_token.
  int32_t EndOfTokens(const Node& node) const {
    return node.skip < static_cast<int32_t>(nodes_.size()) ? nodes_[node.skip].first_token : vocab_size();
  }

 private:
  void LookBeyond();
  void AddUpGroups();

  std::vector<std::string> bytes_;
  std::vector<int32_t> order_;
  std::vector<Node> nodes_;
  std::vector<Beyond> beyond_;  // as nodes_
  std::vector<Group> groups_;   // all nodes, in order
};

}  // namespace switchyard::grammar
