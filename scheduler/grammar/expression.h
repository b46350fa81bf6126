// What a regex or a rule of an EBNF grammar says, as a tree; and how it becomes states of a Grammar.  Values.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "scheduler/grammar/char_class.h"
#include "scheduler/grammar/grammar.h"

namespace switchyard::grammar {

struct Expression {
  enum class Kind : uint8_t { kChars, kSequence, kChoice, kRepeat, kRule };

  Kind kind = Kind::kSequence;
  CharClass chars = {};                // kChars: one of these
  std::vector<Expression> parts = {};  // kSequence (none: the empty text), kChoice; kRepeat: one
  int32_t min = 0, max = 0;            // kRepeat
  RuleId rule = 0;                     // kRule

  static Expression Chars(CharClass chars) { return {.kind = Kind::kChars, .chars = std::move(chars)}; }
  static Expression Text(absl::string_view utf8);  // its characters in a row; bytes that are not UTF-8 are left out
  static Expression Times(Expression part, int32_t min, int32_t max);
};

// How characters are written: as they are, or as inside of a JSON string, where some are escaped.
enum class Spelling : uint8_t { kPlain, kJson };

// Adds the expression behind `from`.  Parts of repetitions become rules of their own, so that the size of what is
// repeated and the number of times add up, and do not multiply.
StateId Emit(const Expression& expression, Spelling spelling, StateId from, Grammar* grammar);

// How many characters it may have; kNoMaximum: without bound.  REQUIRES: no kRule in it.
struct LengthRange {
  int64_t min = 0;
  int64_t max = 0;
};
LengthRange LengthOf(const Expression& expression);

}  // namespace switchyard::grammar
