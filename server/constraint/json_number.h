// Decimal numbers within bounds, and multiples, as states of a grammar.  Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "scheduler/grammar/grammar.h"

namespace switchyard::server {

// An exact decimal number: sign, digits before and behind the point, without superfluous zeros ("" before: 0).
struct Decimal {
  bool negative = false;
  std::string whole;
  std::string fraction;

  // A number as JSON writes it; nullopt: none, or of more than 400 digits.
  static std::optional<Decimal> Parse(absl::string_view json);
  bool IsZero() const { return whole.empty() && fraction.empty(); }
};
// < 0: a is smaller.
int Compare(const Decimal& a, const Decimal& b);

struct NumberBounds {
  std::optional<Decimal> min = {}, max = {};
  bool above_min = false, below_max = false;  // the bound itself is excluded
  bool whole = false;                         // integers only
  std::optional<Decimal> multiple_of = {};    // > 0

  bool any() const { return min.has_value() || max.has_value() || multiple_of.has_value(); }
};

// Adds the numbers within the bounds, written without an exponent and with at most 20 digits behind the point or, where
// there is no upper bound, 20 before it.  InvalidArgument: multiple_of is not from 10^-15 to 20000.
absl::Status EmitNumbers(const NumberBounds& bounds, grammar::StateId from, grammar::StateId to,
                         grammar::Grammar* grammar);

}  // namespace switchyard::server
