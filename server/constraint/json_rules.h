// Rules of a grammar for the parts of JSON that need no schema.  Made when first asked for.  Thread-compatible.
//
// What is allowed is a part of JSON, so that a model does not ramble: between the parts of a container one space, or
// one line feed with up to 24 spaces or 6 tabs; numbers of at most 20 digits before and behind the point; no escaped
// surrogates but whole pairs.
#pragma once

#include <string>
#include <vector>

#include "scheduler/grammar/char_class.h"
#include "scheduler/grammar/expression.h"
#include "scheduler/grammar/grammar.h"

namespace switchyard::server {

class JsonRules {
 public:
  // `grammar` is borrowed.
  explicit JsonRules(grammar::Grammar* grammar) : grammar_(grammar) {}
  // JSON within markup: strings have < only as \u003c.  Before any rule is made.
  void EscapeLessThan() { escapes_less_than_ = true; }

  grammar::RuleId Space();
  grammar::RuleId Comma();       // with space behind it
  grammar::RuleId StringChar();  // what stands for one character between the marks
  grammar::RuleId String();
  grammar::RuleId Number();
  grammar::RuleId Integer();
  grammar::RuleId Value();
  grammar::RuleId Object();
  grammar::RuleId Array();
  // A key with its marks, none of `names`, without escapes.
  grammar::RuleId KeyOtherThan(const std::vector<std::string>& names);
  // key : value.
  grammar::RuleId Member(grammar::RuleId key, grammar::RuleId value);
  // `open` items `close`, min to max of them.
  grammar::StateId List(grammar::StateId from, char open, grammar::RuleId item, int32_t min, int32_t max, char close);

 private:
  grammar::RuleId DefineNumber(const char* name, bool whole);
  // What strings have without an escape.
  const grammar::CharClass& PlainChars() const;

  grammar::Grammar* const grammar_;
  bool escapes_less_than_ = false;
  grammar::RuleId space_ = -1, comma_ = -1, char_ = -1, string_ = -1, number_ = -1, integer_ = -1, value_ = -1,
                  object_ = -1, array_ = -1;
};

}  // namespace switchyard::server
