#include "server/constraint/free_text.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace switchyard::server {
namespace {

using grammar::Grammar;
using grammar::StateId;

constexpr int kTextBytes = 0xF8;  // bytes from here on are in no text

// The states of Aho and Corasick: the longest beginning of one of the texts that the latest bytes are.
class Beginnings {
 public:
  enum class End : uint8_t { kNone, kUntil, kWithout };

  void Add(const std::string& text, End end) {
    size_t at = 0;
    for (const char c : text) {
      int32_t& next = nodes_[at].next[static_cast<uint8_t>(c)];
      if (next < 0) {
        next = static_cast<int32_t>(nodes_.size());
        at = nodes_.size();
        nodes_.emplace_back();
      } else {
        at = static_cast<size_t>(next);
      }
    }
    if (nodes_[at].end != End::kUntil) nodes_[at].end = end;
  }

  // Fills in where each byte leads that goes on with none of the texts.
  void Connect() {
    std::vector<size_t> order = {0};
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t at = order[i];
      const size_t shorter = nodes_[at].shorter;
      if (nodes_[at].end == End::kNone) nodes_[at].end = nodes_[shorter].end;
      for (size_t byte = 0; byte < kTextBytes; ++byte) {
        int32_t& next = nodes_[at].next[byte];
        const int32_t otherwise = at == 0 ? 0 : nodes_[shorter].next[byte];
        if (next < 0) {
          next = otherwise;
        } else {
          nodes_[static_cast<size_t>(next)].shorter = static_cast<size_t>(otherwise);
          order.push_back(static_cast<size_t>(next));
        }
      }
    }
  }

  size_t size() const { return nodes_.size(); }
  End end(size_t node) const { return nodes_[node].end; }
  size_t Next(size_t node, int byte) const { return static_cast<size_t>(nodes_[node].next[static_cast<size_t>(byte)]); }

 private:
  struct Node {
    Node() { next.fill(-1); }
    std::array<int32_t, kTextBytes> next;
    size_t shorter = 0;  // the longest other beginning that it ends with
    End end = End::kNone;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace

StateId EmitFreeText(const FreeTextRule& rule, StateId from, StateId* stop, Grammar* grammar) {
  using End = Beginnings::End;
  const bool is_special = static_cast<uint8_t>(rule.until[0]) >= kTextBytes;
  Beginnings texts;
  if (!is_special) texts.Add(rule.until, End::kUntil);
  for (const std::string& text : rule.without) texts.Add(text, End::kWithout);
  texts.Connect();
  const StateId end = grammar->NewState(), special = grammar->NewState();
  if (is_special) grammar->Empty(grammar->Literal(special, rule.until), end);
  if (stop != nullptr) *stop = grammar->NewState();
  std::vector<StateId> states;
  for (size_t node = 0; node < texts.size(); ++node)
    states.push_back(texts.end(node) == End::kUntil ? end : grammar->NewState());
  grammar->Empty(from, states[0]);
  for (size_t node = 0; node < texts.size(); ++node) {
    if (texts.end(node) != End::kNone) continue;
    if (stop != nullptr) grammar->Empty(states[node], *stop);
    if (is_special) grammar->Empty(states[node], special);
    for (int low = 0, high = 0; low < kTextBytes; low = high + 1) {
      high = low;
      const size_t next = texts.Next(node, low);
      while (high + 1 < kTextBytes && texts.Next(node, high + 1) == next) ++high;
      if (texts.end(next) != End::kWithout)
        grammar->Bytes(states[node], static_cast<uint8_t>(low), static_cast<uint8_t>(high), states[next]);
    }
  }
  return end;
}

}  // namespace switchyard::server
