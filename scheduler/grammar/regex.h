// Reads a regular expression (the common part of ECMA 262's and Python's).  Pure; bounded by the text's length.
//
// Knows: . | () (?:) (?<name>) [] [^] * + ? {m} {m,} {m,n} and their lazy forms, \d \w \s \D \W \S, \n \t \r \f \v \0
// \xHH \uHHHH \u{H}, escaped punctuation; ^ and $ at the ends of the whole or of one of its alternatives.
// Refuses, by name: look-around, back references, \b, \p, anchors elsewhere, possessive quantifiers, flags.
// Letters of \d and \w are ASCII's.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/grammar/expression.h"

namespace switchyard::grammar {

enum class RegexMatch : uint8_t {
  kWhole,   // the whole text must match (guided_regex)
  kSearch,  // a part of it, but where ^ or $ stands (`pattern` of a JSON schema)
};

// InvalidArgument: "at byte 7: back references are not supported".
absl::StatusOr<Expression> ParseRegex(absl::string_view regex, RegexMatch match);

}  // namespace switchyard::grammar
