// Random walks under a constraint with a vocabulary of single bytes and some pairs, by a seed.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/grammar/matcher.h"

namespace switchyard::server {

inline std::shared_ptr<const grammar::TokenTrie> WalkVocabulary(const std::vector<std::string>& more = {}) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  for (const char* pair :
       {"\"a", "a\"", "\":", "\": ", "\", \"", "}", "},", " {\"", "[]", "{}", "10", "e1", "true", "\n  "})
    bytes.emplace_back(pair);
  bytes.insert(bytes.end(), more.begin(), more.end());
  return std::make_shared<const grammar::TokenTrie>(std::move(bytes));
}

inline bool Allows(const grammar::TokenMask& mask, int32_t token) {
  if (mask.bits.empty()) return std::find(mask.ids.begin(), mask.ids.end(), token) != mask.ids.end();
  return (mask.bits[static_cast<size_t>(token / 8)] >> (token % 8)) & 1;
}

inline uint64_t NextRandom(uint64_t* state) { return SplitMix(*state += 0x9e3779b97f4a7c15u); }

// Prefers printable letters, and after `soon` tokens what closes containers, and `closers`.  Ends where the text is
// whole and a coin says so, or nothing else may come.
inline absl::StatusOr<std::string> Walk(const std::shared_ptr<grammar::Automaton>& automaton, uint64_t seed,
                                        const std::vector<std::string>& closers = {}) {
  constexpr int kSoon = 60, kMost = 6000;
  grammar::Matcher matcher(automaton);
  std::string text;
  uint64_t random = seed;
  for (int i = 0; i < kMost; ++i) {
    const absl::StatusOr<grammar::MaskPtr> mask = matcher.NextMask();
    if (!mask.ok()) return mask.status();
    std::vector<int32_t> likely, all;
    const bool closing = i > kSoon;
    for (int32_t t = 0; t < automaton->trie().vocab_size(); ++t) {
      if (!Allows(**mask, t)) continue;
      all.push_back(t);
      const absl::string_view bytes = automaton->trie().BytesOf(t);
      const bool closes = bytes == "]" || bytes == "}" || bytes == "\"" ||
                          std::find(closers.begin(), closers.end(), bytes) != closers.end();
      if (closing ? closes : (bytes[0] >= 0x20 && bytes[0] < 0x7f)) likely.push_back(t);
    }
    if (matcher.accepts() && (all.empty() || closing || NextRandom(&random) % 4 == 0)) return text;
    if (all.empty()) return absl::InternalError("a dead end behind " + text);
    const std::vector<int32_t>& from = likely.empty() || NextRandom(&random) % 16 == 0 ? all : likely;
    const int32_t token = from[NextRandom(&random) % from.size()];
    if (const absl::Status status = matcher.Accept(token); !status.ok()) return status;
    absl::StrAppend(&text, automaton->trie().BytesOf(token));
  }
  return absl::DeadlineExceededError("no end of " + text.substr(0, 200));
}

// Whether the text is whole under the constraint, byte by byte.
inline bool Takes(const std::shared_ptr<grammar::Automaton>& automaton, absl::string_view text) {
  grammar::Matcher matcher(automaton);
  for (const char c : text) {
    if (!matcher.Accept(static_cast<uint8_t>(c)).ok()) return false;
  }
  return matcher.NextMask().ok() && matcher.accepts();
}

}  // namespace switchyard::server
