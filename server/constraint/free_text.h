// Free text in a grammar, up to a text that ends it, without others.  Pure.
#pragma once

#include <string>
#include <vector>

#include "scheduler/grammar/grammar.h"

namespace switchyard::server {

struct FreeTextRule {
  // Ends it.  May begin with kSpecialMark (constraint_compiler.h), then its own characters do not end it.  Not empty.
  std::string until;
  std::vector<std::string> without;  // none of these comes before, whole; of `until` none may be a part
};

// Adds it behind `from`; returns the state behind `until`.  `stop`: where not null, a state to which the text may go
// before `until`, from anywhere.
grammar::StateId EmitFreeText(const FreeTextRule& rule, grammar::StateId from, grammar::StateId* stop,
                              grammar::Grammar* grammar);

}  // namespace switchyard::server
