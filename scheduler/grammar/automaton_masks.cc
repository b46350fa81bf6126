// The automaton's masks: walks through the vocabulary's trie.
#include <array>
#include <bit>
#include <string>

#include "scheduler/base/status_macros.h"
#include "scheduler/grammar/automaton.h"

namespace switchyard::grammar {
namespace {

absl::Status MaskOutOfWork() {
  return absl::ResourceExhaustedError("finding the tokens that fit takes too long: the grammar is too ambiguous");
}

// `bits`: those of `count` tokens.
TokenMask Shortest(std::string bits, size_t count) {
  TokenMask mask;
  if (count * 2 > bits.size()) {  // an id takes about two bytes on the wire
    mask.bits = std::move(bits);
    return mask;
  }
  mask.ids.reserve(count);
  for (size_t byte = 0; byte < bits.size(); ++byte) {
    for (auto rest = static_cast<uint8_t>(bits[byte]); rest != 0; rest &= static_cast<uint8_t>(rest - 1))
      mask.ids.push_back(static_cast<int32_t>(byte * 8) + std::countr_zero(rest));
  }
  return mask;
}

// Prefixes with fewer others behind them are not worth it to find a loop.
constexpr int32_t kFewestToLook = 48;
// Longer texts behind a prefix are walked through, unless a set leads to itself: a walk makes few sets ahead.
constexpr int32_t kMostCharsAtOnce = 16;
constexpr int64_t kTokensOfAUnit = 16;  // of work, where they are taken as a whole

// UTF-8 beyond ASCII: the ranges of the first byte and of those that follow; {0, 0} ends it.
constexpr uint8_t kUtf8[][5][2] = {
    {{0xc2, 0xdf}, {0x80, 0xbf}},
    {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}},
    {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}},
    {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}},
};

}  // namespace

// Whether all texts of these ranges' bytes lead from `set` to `to`.
absl::StatusOr<bool> Automaton::AllLeadTo(int32_t to, int32_t set, const uint8_t (*ranges)[2], int64_t* work) {
  if ((*ranges)[0] == 0) return set == to;
  int32_t last = -1;  // class
  for (int byte = (*ranges)[0]; byte <= (*ranges)[1]; ++byte) {
    if (classes_.Of(static_cast<uint8_t>(byte)) == last) continue;
    last = classes_.Of(static_cast<uint8_t>(byte));
    ASSIGN_OR_RETURN(const int32_t next, Next(set, static_cast<uint8_t>(byte), work));
    if (next == kDead) return false;
    ASSIGN_OR_RETURN(const bool all, AllLeadTo(to, next, ranges + 1, work));
    if (!all) return false;
  }
  return true;
}

absl::StatusOr<Automaton::Loop> Automaton::LoopOf(int32_t set, int64_t* work) {
  if (sets_[set].loop.to != kUnknown) return sets_[set].loop;
  std::vector<Loop> loops;
  for (int32_t c = 0; c < classes_.size() && classes_.First(c) < 0x80; ++c) {
    ASSIGN_OR_RETURN(const int32_t to, Next(set, classes_.First(c), work));
    if (to == kDead) continue;
    auto at = loops.begin();
    while (at != loops.end() && at->to != to) ++at;
    if (at == loops.end()) at = loops.insert(at, Loop{.to = to});
    for (int half = 0; half < 2; ++half) at->ascii[half] |= classes_.Ascii(c)[half];
  }
  Loop best{.to = kDead};
  int most = 0;
  for (const Loop& loop : loops) {
    const int count = std::popcount(loop.ascii[0]) + std::popcount(loop.ascii[1]);
    if (count <= most) continue;
    best = loop;
    most = count;
  }
  if (best.to != kDead) {
    best.others = true;
    for (const auto& ranges : kUtf8) {
      ASSIGN_OR_RETURN(const bool all, AllLeadTo(best.to, set, ranges, work));
      if (!all) {
        best.others = false;
        break;
      }
    }
  }
  return sets_[set].loop = best;
}

// Whether everything of that kind fits behind `set`.
absl::StatusOr<bool> Automaton::TakesAll(int32_t set, const TokenTrie::Beyond& beyond, int64_t* work) {
  for (int32_t i = 0; i < beyond.num_chars; ++i) {
    ASSIGN_OR_RETURN(const Loop loop, LoopOf(set, work));
    if (loop.to == kDead || (beyond.others && !loop.others)) return false;
    if (((beyond.ascii[0] & ~loop.ascii[0]) | (beyond.ascii[1] & ~loop.ascii[1])) != 0) return false;
    if (loop.to == set) return true;
    if (beyond.num_chars > kMostCharsAtOnce) return false;
    set = loop.to;
  }
  return true;
}

absl::StatusOr<MaskPtr> Automaton::MaskOf(int32_t set, int64_t* work) {
  if (sets_[set].mask != nullptr) return sets_[set].mask;
  FoundTokens found{.bits = std::string((static_cast<size_t>(trie_->vocab_size()) + 7) / 8, '\0')};
  for (const TokenTrie::Group& group : trie_->groups()) {
    if (group.beyond.whole_chars) {
      ASSIGN_OR_RETURN(const bool all, TakesAll(set, group.beyond, work));
      if (all) {
        for (size_t i = 0; i < found.bits.size(); ++i) found.bits[i] = static_cast<char>(found.bits[i] | group.bits[i]);
        found.count += static_cast<size_t>(group.num_tokens);
        *work -= static_cast<int64_t>(found.bits.size()) / kTokensOfAUnit;
        continue;
      }
    }
    RETURN_IF_ERROR(WalkGroup(set, group, &found, work));
  }
  if (*work < 0) return MaskOutOfWork();
  KeepMask(set, std::make_shared<const TokenMask>(Shortest(std::move(found.bits), found.count)));
  totals_->masks_made.fetch_add(1, std::memory_order_relaxed);
  return sets_[set].mask;
}

absl::Status Automaton::WalkGroup(int32_t set, const TokenTrie::Group& group, FoundTokens* found, int64_t* work) {
  const std::vector<int32_t>& order = trie_->order();
  const auto take = [&](int32_t first, int32_t end) {
    found->count += static_cast<size_t>(end - first);
    for (int32_t t = first; t < end; ++t) {
      char& byte = found->bits[order[t] / 8];
      byte = static_cast<char>(byte | (1 << (order[t] % 8)));
    }
  };
  std::array<int32_t, TokenTrie::kMaxTokenBytes + 1> place;
  place[0] = set;
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  int64_t visited = 0;
  for (int32_t i = group.first_node; i < group.end_node; ++visited) {
    const TokenTrie::Node& node = nodes[i];
    int32_t to = next_[NextIndex(place[node.depth - 1], node.byte)];
    if (to == kUnknown) {
      *work -= std::exchange(visited, 0);
      ASSIGN_OR_RETURN(to, Next(place[node.depth - 1], node.byte, work));
    }
    if (to == kDead) {
      i = node.skip;
      continue;
    }
    const TokenTrie::Beyond& beyond = trie_->beyond(i);
    // A set that leads to itself was looked at where few characters were behind it.
    const bool known = sets_[to].loop.to != kUnknown, far = beyond.num_chars > kMostCharsAtOnce && node.depth > 1;
    if (beyond.whole_chars && (known ? node.skip > i + 1 : node.skip > i + kFewestToLook && !far)) {
      ASSIGN_OR_RETURN(const bool all, TakesAll(to, beyond, work));
      if (all) {
        const int32_t tokens_end = trie_->EndOfTokens(node);
        take(node.first_token, tokens_end);
        visited += (tokens_end - node.first_token) / kTokensOfAUnit;
        i = node.skip;
        continue;
      }
    }
    place[node.depth] = to;
    take(node.first_token, node.first_token + node.num_tokens);
    ++i;
  }
  *work -= visited;
  return *work < 0 ? MaskOutOfWork() : absl::OkStatus();
}

void Automaton::KeepMask(int32_t set, MaskPtr mask) {
  if (sets_[set].mask != nullptr) return;
  Hold(static_cast<int64_t>(mask->bits.size() + mask->ids.size() * sizeof(int32_t)));
  sets_[set].mask = std::move(mask);
}

absl::StatusOr<bool> Automaton::AnyFits(int32_t set, int64_t* work) {
  if (sets_[set].mask != nullptr) return !sets_[set].mask->empty();
  std::array<int32_t, TokenTrie::kMaxTokenBytes + 1> place;
  place[0] = set;
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  const auto end = static_cast<int32_t>(nodes.size());
  for (int32_t i = 0; i < end;) {
    const TokenTrie::Node& node = nodes[i];
    if (--*work < 0) return MaskOutOfWork();
    ASSIGN_OR_RETURN(const int32_t to, Next(place[node.depth - 1], node.byte, work));
    if (to != kDead && node.num_tokens > 0) return true;
    place[node.depth] = to;
    i = to == kDead ? node.skip : i + 1;
  }
  return false;
}

}  // namespace switchyard::grammar
