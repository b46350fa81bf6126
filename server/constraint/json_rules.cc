#include "server/constraint/json_rules.h"

#include <map>
#include <memory>

#include "scheduler/base/check.h"
#include "scheduler/grammar/regex.h"

namespace switchyard::server {
namespace {

using grammar::Expression;
using grammar::Grammar;
using grammar::RuleId;
using grammar::StateId;

constexpr absl::string_view kSpace = R"( |\n( {0,24}|\t{0,6}))";
constexpr absl::string_view kEscape = R"(\\(["\\/bfnrt]|u([0-9a-cA-Ce-fE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|)"
                                      R"([dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})))";
constexpr absl::string_view kInteger = R"(-?(0|[1-9][0-9]{0,19}))";
constexpr absl::string_view kFraction = R"((\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?)";

// Of our own, so it is right.
StateId EmitRegex(absl::string_view regex, StateId from, Grammar* grammar) {
  const absl::StatusOr<Expression> parsed = grammar::ParseRegex(regex, grammar::RegexMatch::kWhole);
  SY_CHECK_OK(parsed.status());
  return Emit(*parsed, grammar::Spelling::kPlain, from, grammar);
}

}  // namespace

const grammar::CharClass& JsonRules::PlainChars() const {
  static const grammar::CharClass chars = grammar::CharClass({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}).Complement();
  static const grammar::CharClass in_markup = chars.Without({{'<', '<'}});
  return escapes_less_than_ ? in_markup : chars;
}

RuleId JsonRules::Space() {
  if (space_ >= 0) return space_;
  space_ = grammar_->AddRule("space");
  grammar_->Define(space_, [&](StateId from) {
    const StateId to = EmitRegex(kSpace, from, grammar_);
    grammar_->Empty(from, to);
    return to;
  });
  return space_;
}

RuleId JsonRules::Comma() {
  if (comma_ >= 0) return comma_;
  const RuleId space = Space();
  comma_ = grammar_->AddRule("comma");
  grammar_->Define(comma_, [&](StateId from) { return grammar_->Call(grammar_->Literal(from, ","), space); });
  return comma_;
}

RuleId JsonRules::StringChar() {
  if (char_ >= 0) return char_;
  char_ = grammar_->AddRule("character");
  grammar_->Define(char_, [&](StateId from) {
    const StateId to = grammar_->OneOf(from, PlainChars());
    grammar_->Empty(EmitRegex(kEscape, from, grammar_), to);
    return to;
  });
  return char_;
}

RuleId JsonRules::String() {
  if (string_ >= 0) return string_;
  const RuleId character = StringChar();
  string_ = grammar_->AddRule("string");
  grammar_->Define(string_, [&](StateId from) {
    const StateId inside = grammar_->Repeat(grammar_->Literal(from, "\""), 0, grammar::kNoMaximum, character);
    return grammar_->Literal(inside, "\"");
  });
  return string_;
}

RuleId JsonRules::DefineNumber(const char* name, bool whole) {
  const RuleId rule = grammar_->AddRule(name);
  grammar_->Define(rule, [&](StateId from) {
    const StateId to = EmitRegex(kInteger, from, grammar_);
    return whole ? to : EmitRegex(kFraction, to, grammar_);
  });
  return rule;
}

RuleId JsonRules::Number() { return number_ >= 0 ? number_ : number_ = DefineNumber("number", /*whole=*/false); }
RuleId JsonRules::Integer() { return integer_ >= 0 ? integer_ : integer_ = DefineNumber("integer", /*whole=*/true); }

RuleId JsonRules::Value() {
  if (value_ >= 0) return value_;
  value_ = grammar_->AddRule("value");
  const RuleId parts[] = {Object(), Array(), String(), Number()};
  grammar_->Define(value_, [&](StateId from) {
    const StateId to = grammar_->OneOfTexts(from, {"true", "false", "null"});
    for (const RuleId part : parts) grammar_->Empty(grammar_->Call(from, part), to);
    return to;
  });
  return value_;
}

RuleId JsonRules::Object() {
  if (object_ >= 0) return object_;
  object_ = grammar_->AddRule("object");
  const RuleId member = Member(String(), Value());
  grammar_->Define(object_, [&](StateId from) { return List(from, '{', member, 0, grammar::kNoMaximum, '}'); });
  return object_;
}

RuleId JsonRules::Array() {
  if (array_ >= 0) return array_;
  array_ = grammar_->AddRule("array");
  const RuleId value = Value();
  grammar_->Define(array_, [&](StateId from) { return List(from, '[', value, 0, grammar::kNoMaximum, ']'); });
  return array_;
}

RuleId JsonRules::Member(RuleId key, RuleId value) {
  const RuleId space = Space(), rule = grammar_->AddRule("member");
  grammar_->Define(rule, [&](StateId from) {
    const StateId behind = grammar_->Literal(grammar_->Call(from, key), ":");
    return grammar_->Call(grammar_->Call(behind, space), value);
  });
  return rule;
}

StateId JsonRules::List(StateId from, char open, RuleId item, int32_t min, int32_t max, char close) {
  const StateId inside = grammar_->Call(grammar_->Literal(from, std::string(1, open)), Space());
  const StateId behind = grammar_->Repeat(inside, min, max, item, Comma());
  return grammar_->Literal(grammar_->Call(behind, Space()), std::string(1, close));
}

RuleId JsonRules::KeyOtherThan(const std::vector<std::string>& names) {
  if (names.empty()) return String();
  struct Node {
    std::map<uint32_t, std::unique_ptr<Node>> next;
    bool is_name = false;
  } root;
  for (const std::string& name : names) {
    Node* at = &root;
    for (const Expression& letter : Expression::Text(name).parts) {
      std::unique_ptr<Node>& next = at->next[letter.chars.ranges()[0].low];
      if (next == nullptr) next = std::make_unique<Node>();
      at = next.get();
    }
    at->is_name = true;
  }
  const RuleId rule = grammar_->AddRule("other key");
  grammar_->Define(rule, [&](StateId from) {
    const StateId end = grammar_->NewState(), free = grammar_->NewState();
    grammar_->Empty(grammar_->OneOf(free, PlainChars()), free);
    grammar_->Bytes(free, '"', '"', end);
    std::vector<std::pair<const Node*, StateId>> todo = {{&root, grammar_->Literal(from, "\"")}};
    while (!todo.empty()) {
      const auto [node, state] = todo.back();
      todo.pop_back();
      if (!node->is_name) grammar_->Bytes(state, '"', '"', end);
      grammar::CharClass others = PlainChars();
      for (const auto& [letter, next] : node->next) {
        const grammar::CharClass one = {{letter, letter}};
        others = others.Without(one);
        if (PlainChars().Contains(letter)) todo.emplace_back(next.get(), grammar_->OneOf(state, one));
      }
      grammar_->Empty(grammar_->OneOf(state, others), free);
    }
    return end;
  });
  return rule;
}

}  // namespace switchyard::server
