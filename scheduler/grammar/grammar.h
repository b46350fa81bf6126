// A grammar as an automaton over bytes: rules, each a small nondeterministic automaton whose edges take a range of
// bytes, take nothing, or call a rule and go on behind it.  So it may be recursive, as JSON is.
//
// Built by the methods below, with a state to go on from in and out; then Finish, then constant.  Thread-compatible.
//
// Why own code and not the library XGrammar 0.2.8 (measured with its C++ core, one core, a vocabulary of 128000
// tokens): it makes its masks ahead and cannot be stopped, so a regex of 30 bytes, ((a{0,100}){0,100}){0,100}, held a
// thread for more than 30 s and an object of 200 optional properties for 22 s; and it ignores allOf of two schemas,
// if, not, multipleOf of some types and overlapping oneOf without an error.  Here every size has a bound, masks are
// made when they are needed and kept (automaton.h), and a schema that is not held to exactly is refused.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "scheduler/grammar/char_class.h"

namespace switchyard::grammar {

using StateId = int32_t;
using RuleId = int32_t;

inline constexpr int32_t kNoMaximum = std::numeric_limits<int32_t>::max();

class Grammar {
 public:
  // Bounds a grammar's memory to some 20 MB, and the time for building it to parts of a second.
  static constexpr int32_t kMaxStates = 100'000;

  struct ByteEdge {
    uint8_t low, high;
    StateId to;
  };
  struct CallEdge {
    RuleId rule;
    StateId to;
  };
  struct State {
    std::vector<ByteEdge> bytes;
    std::vector<StateId> empties;
    std::vector<CallEdge> calls;
    bool ends_rule = false;  // the end of its rule, without edges
    bool only_ends = false;  // no way but to the end of its rule, taking nothing (set by Finish)
  };
  struct Rule {
    std::string name;
    StateId start = 0;
    StateId end = 0;
  };

  // Rule 0 is the root, unless SetRoot names another.  A rule may be called before it is filled in.
  RuleId AddRule(std::string name);
  // The body goes from the rule's start to a state that it returns, which becomes the end.
  void Define(RuleId rule, absl::FunctionRef<StateId(StateId)> body);

  void SetRoot(RuleId rule) { root_ = rule; }

  // Each of these returns the state behind what it adds behind `from`.  Past kMaxStates nothing is added, and Finish
  // fails; so callers need not check, but must not loop without bound.
  StateId NewState();
  StateId Literal(StateId from, absl::string_view text);
  StateId OneOf(StateId from, const CharClass& chars);
  StateId OneOfTexts(StateId from, const std::vector<std::string>& texts);
  StateId Call(StateId from, RuleId rule);
  // min to max times `body`, with `separator` between them, if there is one (a rule, else -1).
  StateId Repeat(StateId from, int32_t min, int32_t max, RuleId body, RuleId separator = -1);
  void Empty(StateId from, StateId to);
  void Bytes(StateId from, uint8_t low, uint8_t high, StateId to);

  // Removes what cannot be completed, and checks.  May be called again after more was added.  Errors (InvalidArgument):
  // too large, a rule calls itself before it takes a byte (with the rule's name), nothing matches.
  absl::Status Finish();

  bool full() const { return full_; }
  RuleId root() const { return root_; }
  const State& state(StateId id) const { return states_[id]; }
  const Rule& rule(RuleId id) const { return rules_[id]; }
  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }
  int32_t num_rules() const { return static_cast<int32_t>(rules_.size()); }

 private:
  void OneOfUtf8(StateId from, uint32_t low, uint32_t high, StateId to);
  void TrimDeadEnds();
  void FindOnlyEnds();
  absl::Status CheckRecursion() const;

  std::vector<State> states_;
  std::vector<Rule> rules_;
  RuleId root_ = 0;
  bool full_ = false;
};

}  // namespace switchyard::grammar
