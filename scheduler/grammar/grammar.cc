#include "scheduler/grammar/grammar.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::grammar {

RuleId Grammar::AddRule(std::string name) {
  Rule rule{.name = std::move(name)};
  rule.start = NewState();
  rule.end = NewState();
  rules_.push_back(std::move(rule));
  return num_rules() - 1;
}

void Grammar::Define(RuleId id, absl::FunctionRef<StateId(StateId)> body) {
  const StateId start = rules_[id].start, end = rules_[id].end;
  Empty(body(start), end);
  states_[end].ends_rule = true;
}

// The last state serves all that come too late.
StateId Grammar::NewState() {
  if (num_states() >= kMaxStates) {
    full_ = true;
    return num_states() - 1;
  }
  states_.emplace_back();
  return num_states() - 1;
}

void Grammar::Empty(StateId from, StateId to) {
  if (!full_) states_[from].empties.push_back(to);
}

void Grammar::Bytes(StateId from, uint8_t low, uint8_t high, StateId to) {
  if (!full_) states_[from].bytes.push_back({low, high, to});
}

StateId Grammar::Literal(StateId from, absl::string_view text) {
  for (const char c : text) {
    const StateId to = NewState();
    Bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
    from = to;
  }
  return from;
}

// Texts share the states of their common beginnings.
StateId Grammar::OneOfTexts(StateId from, const std::vector<std::string>& texts) {
  const StateId begin = NewState(), end = NewState();
  Empty(from, begin);
  absl::flat_hash_map<std::pair<StateId, char>, StateId> known;
  absl::flat_hash_set<StateId> ends;  // of texts; equal ones share theirs
  for (const std::string& text : texts) {
    StateId at = begin;
    for (const char c : text) {
      const auto [it, is_new] = known.try_emplace({at, c}, 0);
      if (is_new) it->second = Literal(at, absl::string_view(&c, 1));
      at = it->second;
    }
    if (ends.insert(at).second) Empty(at, end);
  }
  return end;
}

StateId Grammar::Call(StateId from, RuleId rule) {
  const StateId to = NewState();
  if (!full_) states_[from].calls.push_back({rule, to});
  return to;
}

StateId Grammar::OneOf(StateId from, const CharClass& chars) {
  constexpr uint32_t kFirstOfLength[] = {0, 0x80, 0x800, 0x10000, kLastChar + 1};
  const StateId to = NewState();
  for (const CharClass::Range& range : chars.ranges()) {
    for (int length = 1; length <= 4; ++length) {
      const uint32_t low = std::max(range.low, kFirstOfLength[length - 1]);
      const uint32_t high = std::min(range.high, kFirstOfLength[length] - 1);
      if (low <= high) OneOfUtf8(from, low, high, to);
    }
  }
  return to;
}

// REQUIRES: both ends have equally many bytes.  Splits until every byte's range is independent of the others.
void Grammar::OneOfUtf8(StateId from, uint32_t low, uint32_t high, StateId to) {
  uint8_t first[4], last[4];
  const int length = EncodeUtf8(low, first);
  EncodeUtf8(high, last);
  for (int tail = length - 1; tail > 0; --tail) {
    const uint32_t mask = (uint32_t{1} << (6 * tail)) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      OneOfUtf8(from, low, low | mask, to);
      return OneOfUtf8(from, (low | mask) + 1, high, to);
    }
    if ((high & mask) != mask) {
      OneOfUtf8(from, low, (high & ~mask) - 1, to);
      return OneOfUtf8(from, high & ~mask, high, to);
    }
  }
  for (int i = 0; i < length; ++i) {
    const StateId next = i + 1 == length ? to : NewState();
    Bytes(from, first[i], last[i], next);
    from = next;
  }
}

StateId Grammar::Repeat(StateId from, int32_t min, int32_t max, RuleId body, RuleId separator) {
  const auto one_more = [&](StateId at, int32_t index) {
    return Call(index > 0 && separator >= 0 ? Call(at, separator) : at, body);
  };
  const StateId end = NewState();
  for (int32_t i = 0; i < min && !full_; ++i) from = one_more(from, i);
  if (max != kNoMaximum) {
    for (int32_t i = min; i < max && !full_; ++i) {
      Empty(from, end);
      from = one_more(from, i);
    }
    Empty(from, end);
    return end;
  }
  Empty(from, end);
  if (min == 0 && separator >= 0) {
    from = one_more(from, 0);
    Empty(from, end);
  }
  const StateId loop = NewState();
  Empty(from, loop);
  Empty(one_more(loop, 1), loop);
  Empty(loop, end);
  return end;
}

absl::Status Grammar::Finish() {
  if (full_) {
    return absl::InvalidArgumentError(
        absl::StrCat("needs more than ", kMaxStates, " states: too large or too many repetitions"));
  }
  TrimDeadEnds();
  FindOnlyEnds();
  const State& root = states_[rules_[root_].start];
  if (root.bytes.empty() && root.empties.empty() && root.calls.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("nothing matches ", rules_[root_].name));
  }
  return CheckRecursion();
}

// A state is kept if a way leads from it to the end of its rule.
void Grammar::TrimDeadEnds() {
  std::vector<std::vector<StateId>> before(states_.size()),
      callers(states_.size());  // callers: of a rule, by its start
  for (StateId s = 0; s < num_states(); ++s) {
    for (const ByteEdge& edge : states_[s].bytes) before[edge.to].push_back(s);
    for (const StateId to : states_[s].empties) before[to].push_back(s);
    for (const CallEdge& call : states_[s].calls) {
      before[call.to].push_back(s);
      callers[rules_[call.rule].start].push_back(s);
    }
  }
  std::vector<bool> good(states_.size());
  std::vector<StateId> todo;
  const auto leads_on = [&](const State& state) {
    return std::any_of(state.bytes.begin(), state.bytes.end(), [&](const ByteEdge& e) { return good[e.to]; }) ||
           std::any_of(state.empties.begin(), state.empties.end(), [&](StateId to) { return good[to]; }) ||
           std::any_of(state.calls.begin(), state.calls.end(),
                       [&](const CallEdge& c) { return good[c.to] && good[rules_[c.rule].start]; });
  };
  const auto mark = [&](StateId s) {
    if (good[s]) return;
    good[s] = true;
    todo.push_back(s);
  };
  for (StateId s = 0; s < num_states(); ++s) {
    if (states_[s].ends_rule) mark(s);
  }
  while (!todo.empty()) {
    const StateId s = todo.back();
    todo.pop_back();
    for (const auto* list : {&before[s], &callers[s]}) {
      for (const StateId other : *list) {
        if (!good[other] && leads_on(states_[other])) mark(other);
      }
    }
  }
  for (State& state : states_) {
    std::erase_if(state.bytes, [&](const ByteEdge& e) { return !good[e.to]; });
    std::erase_if(state.empties, [&](StateId to) { return !good[to]; });
    std::erase_if(state.calls, [&](const CallEdge& c) { return !good[c.to] || !good[rules_[c.rule].start]; });
  }
}

void Grammar::FindOnlyEnds() {
  bool changed = true;
  for (State& state : states_) state.only_ends = state.ends_rule;
  // Chains are built forwards, so that backwards few rounds are needed; that not all are found costs only stack.
  for (int round = 0; changed && round < 8; ++round) {
    changed = false;
    for (StateId s = num_states() - 1; s >= 0; --s) {
      State& state = states_[s];
      if (state.only_ends || state.empties.empty() || !state.bytes.empty() || !state.calls.empty()) continue;
      if (!std::all_of(state.empties.begin(), state.empties.end(), [&](StateId to) { return states_[to].only_ends; }))
        continue;
      state.only_ends = changed = true;
    }
  }
}

// A rule is empty-able if its end is reached without a byte; rule A is before rule B if B may be called from A's start
// without one.  A circle of these would never end.
absl::Status Grammar::CheckRecursion() const {
  std::vector<bool> nullable(rules_.size());
  std::vector<std::vector<RuleId>> first(rules_.size());
  std::vector<int32_t> seen(states_.size(), -1);
  const auto explore = [&](RuleId id, int32_t round) {
    bool reaches_end = false;
    first[id].clear();
    std::vector<StateId> todo = {rules_[id].start};
    while (!todo.empty()) {
      const StateId s = todo.back();
      todo.pop_back();
      if (std::exchange(seen[s], round) == round) continue;
      const State& state = states_[s];
      reaches_end = reaches_end || state.ends_rule;
      todo.insert(todo.end(), state.empties.begin(), state.empties.end());
      for (const CallEdge& call : state.calls) {
        first[id].push_back(call.rule);
        if (nullable[call.rule]) todo.push_back(call.to);
      }
    }
    return reaches_end;
  };
  int32_t round = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (RuleId id = num_rules() - 1; id >= 0; --id) {  // bodies come after those that call them, mostly
      if (nullable[id] || !explore(id, round++)) continue;
      nullable[id] = changed = true;
    }
    if (round > 64 * num_rules()) return absl::InvalidArgumentError("rules that may be empty are nested too deep");
  }
  for (RuleId id = 0; id < num_rules(); ++id) explore(id, round++);
  std::vector<uint8_t> color(rules_.size());  // 1 on the way, 2 done
  for (RuleId root = 0; root < num_rules(); ++root) {
    std::vector<std::pair<RuleId, size_t>> way;
    if (color[root] == 0) way.emplace_back(root, 0);
    while (!way.empty()) {
      auto& [id, next] = way.back();
      color[id] = 1;
      if (next == first[id].size()) {
        color[id] = 2;
        way.pop_back();
        continue;
      }
      const RuleId to = first[id][next++];
      if (color[to] == 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("rule \"", rules_[to].name, "\" calls itself before it takes a character (left recursion)"));
      }
      if (color[to] == 0) way.emplace_back(to, 0);
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::grammar
