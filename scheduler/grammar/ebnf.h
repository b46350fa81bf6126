// Reads a grammar in EBNF, as llama.cpp (GBNF) and XGrammar write it.  Pure; bounded by the text's length.
//
//   root  ::= "yes" | list        # the rule `root` is the whole
//   list  ::= item ("," item)*
//   item  ::= [a-z]+ | "\"" [^"\n]{0,20} "\""
//
// Also ? + {m} {m,} {m,n} . and names with letters, digits, _ and -.  A rule may go over several lines.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/grammar/grammar.h"

namespace switchyard::grammar {

// The finished grammar.  InvalidArgument: "line 3: rule "item" is not defined", or those of Grammar::Finish.
absl::StatusOr<std::unique_ptr<const Grammar>> ParseEbnf(absl::string_view text);

}  // namespace switchyard::grammar
