#include "scheduler/grammar/token_trie.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace switchyard::grammar {
namespace {

// Inside of a character: how many bytes are missing, and the range of the next one.
struct CharState {
  int missing = 0;
  uint8_t low = 0x80, high = 0xbf;
};

// Goes on by a byte.  False: that is not UTF-8; then *state is as if a character began with the byte.
bool GoOnUtf8(uint8_t byte, CharState* state) {
  const bool continues = state->missing > 0 && byte >= state->low && byte <= state->high;
  const bool fits = continues || (state->missing == 0 && (byte < 0x80 || (byte >= 0xc2 && byte <= 0xf4)));
  if (continues) {
    *state = {.missing = state->missing - 1};
  } else {
    *state = {.missing = byte < 0xc2 || byte > 0xf4 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3};
    if (byte == 0xe0) state->low = 0xa0;
    if (byte == 0xed) state->high = 0x9f;
    if (byte == 0xf0) state->low = 0x90;
    if (byte == 0xf4) state->high = 0x8f;
  }
  return fits;
}

constexpr int32_t kMostChars[] = {4, 8, 16};  // of the plain groups' tokens
constexpr uint8_t kNotPlain = std::size(kMostChars);

// Plain: text that strings of JSON and the like take as it is, UTF-8, the last character maybe in part, without quotes,
// backslashes or control characters.
uint8_t GroupOf(absl::string_view token) {
  CharState state;
  int32_t num_chars = 0;
  for (const char c : token) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7f || byte == '"' || byte == '\\' || !GoOnUtf8(byte, &state)) return kNotPlain;
    if (byte < 0x80 || byte >= 0xc0) ++num_chars;
  }
  uint8_t group = 0;
  while (group < kNotPlain && num_chars > kMostChars[group]) ++group;
  return group;
}

}  // namespace

TokenTrie::TokenTrie(std::vector<std::string> bytes) : bytes_(std::move(bytes)), order_(bytes_.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  for (std::string& token : bytes_) {
    if (token.size() > kMaxTokenBytes) token.clear();
  }
  std::vector<uint8_t> group_of(bytes_.size());
  for (size_t i = 0; i < bytes_.size(); ++i) group_of[i] = GroupOf(bytes_[i]);
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    return group_of[a] != group_of[b] ? group_of[a] < group_of[b] : bytes_[a] < bytes_[b];
  });
  std::vector<int32_t> open;  // nodes of the current token's prefixes
  absl::string_view last;
  for (size_t i = 0; i < order_.size(); ++i) {
    const absl::string_view token = bytes_[order_[i]];
    if (token.empty()) continue;
    const bool begins_group = groups_.empty() || group_of[order_[i]] != group_of[order_[i - 1]];
    const size_t limit = begins_group ? 0 : std::min(last.size(), token.size());
    size_t common = 0;
    while (common < limit && last[common] == token[common]) ++common;
    // More equal tokens than a node counts get a node of the same prefix, without anything behind it.
    if (common > 0 && common == token.size() && nodes_[open[common - 1]].num_tokens == UINT8_MAX) --common;
    for (; open.size() > common; open.pop_back()) nodes_[open.back()].skip = static_cast<int32_t>(nodes_.size());
    if (begins_group) groups_.emplace_back().first_node = static_cast<int32_t>(nodes_.size());
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
  LookBeyond();
  AddUpGroups();
}

void TokenTrie::AddUpGroups() {
  const auto num_nodes = static_cast<int32_t>(nodes_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    group.end_node = g + 1 < groups_.size() ? groups_[g + 1].first_node : num_nodes;
    const int32_t end = group.end_node < num_nodes ? nodes_[group.end_node].first_token : vocab_size();
    group.first_token = nodes_[group.first_node].first_token;
    group.num_tokens = end - group.first_token;
    group.bits.assign((bytes_.size() + 7) / 8, '\0');
    for (int32_t t = group.first_token; t < end; ++t) {
      char& byte = group.bits[order_[t] / 8];
      byte = static_cast<char>(byte | (1 << (order_[t] % 8)));
    }
  }
}

void TokenTrie::LookBeyond() {
  beyond_.resize(nodes_.size());
  std::vector<CharState> states(kMaxTokenBytes + 1);  // along the way to a node
  std::vector<int32_t> parents(nodes_.size(), -1), way(kMaxTokenBytes + 1, -1);
  std::vector<bool> fits(nodes_.size()), ends_char(nodes_.size()), rest_fits(nodes_.size(), true);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    parents[i] = way[node.depth - 1];
    way[node.depth] = static_cast<int32_t>(i);
    states[node.depth] = states[node.depth - 1];
    fits[i] = GoOnUtf8(node.byte, &states[node.depth]);
    // A byte that continues a character that did not begin ends none.
    ends_char[i] = states[node.depth].missing == 0 && (fits[i] || node.byte < 0x80);
  }
  for (Group& group : groups_) group.beyond.whole_chars = true;
  size_t group = groups_.size();
  for (size_t i = nodes_.size(); i-- > 0;) {  // children come behind their parents
    Beyond& mine = beyond_[i];
    mine.whole_chars = ends_char[i] && rest_fits[i];
    if (group == groups_.size() || static_cast<int32_t>(i) < groups_[group].first_node) --group;
    const bool is_first_byte = parents[i] < 0;
    Beyond& all = is_first_byte ? groups_[group].beyond : beyond_[parents[i]];
    const uint8_t byte = nodes_[i].byte;
    const bool begins = byte < 0x80 || byte >= 0xc0;
    all.num_chars = std::max(all.num_chars, static_cast<uint8_t>(std::min(mine.num_chars + (begins ? 1 : 0), 255)));
    for (int half = 0; half < 2; ++half) all.ascii[half] |= mine.ascii[half];
    if (byte < 0x80) all.ascii[byte / 64] |= uint64_t{1} << (byte % 64);
    all.others = all.others || mine.others || byte >= 0x80;
    const bool fit = rest_fits[i] && fits[i];
    if (is_first_byte) {
      all.whole_chars = all.whole_chars && fit;
    } else {
      rest_fits[parents[i]] = rest_fits[parents[i]] && fit;
    }
  }
}

}  // namespace switchyard::grammar
