// Rewrites a pattern in Oniguruma's (Ruby) syntax, as in tokenizer.json, to PCRE2's syntax.  Pure function.
//
// Where the two differ, as measured against the `tokenizers` library:
//   X{n,m}+     greedy repeat of a repeat, not possessive  ->  (?:X{n,m})+
//   X{n}?       optional, not lazy                          ->  (?:X{n})?
//   X{,m}       from zero                                   ->  X{0,m}
//   \h \H       hexadecimal digit                           ->  [0-9A-Fa-f]
//   \s \S       White_Space, without U+180E                 ->  \p{White_Space}
//   \w \W       Alphabetic, M, Nd, Pc (outside of sets also ² ³ ¹ ¼ ½ ¾)  ->  a set of these
//   [:alpha:]   Alphabetic; likewise the other POSIX names  ->  \p{Alphabetic} ...
//   \uHHHH      code point                                  ->  \x{HHHH}
//   \p{Han}     characters of that script (one of 23), not also those that it shares  ->  \p{sc:Han}
//   (?m)        `.` matches a newline                       ->  (?s)
// `^` and `$` are line anchors in Oniguruma: compile with PCRE2_MULTILINE.  Sets inside sets and `&&` have no
// counterpart and are refused.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::tokenizer {

absl::StatusOr<std::string> OnigurumaToPcre2(absl::string_view pattern);

}  // namespace switchyard::tokenizer
