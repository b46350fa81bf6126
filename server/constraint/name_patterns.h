// The regexes of an object's `patternProperties`, and which names they match.  Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/grammar/automaton.h"
#include "scheduler/grammar/expression.h"
#include "server/constraint/schema_merge.h"

namespace switchyard::server {

class NamePatterns {
 public:
  // Of a whole schema: about a tenth of a second.
  static constexpr int64_t kMaxSteps = 2'000'000;

  // InvalidArgument: a regex cannot be held to, or several patterns have different schemas.
  static absl::StatusOr<NamePatterns> Parse(const SchemaJson& patterns);

  const std::vector<grammar::Expression>& regexes() const { return regexes_; }
  // Whether any of them matches the name.  Reduces *steps by those that it took.  InvalidArgument: none were left, or a
  // regex is too large or too ambiguous.
  absl::StatusOr<bool> Match(absl::string_view name, int64_t* steps);

 private:
  struct Runner {
    bool is_made = false;                           // when the first name is tried
    std::unique_ptr<grammar::Automaton> automaton;  // null: it matches nothing
    int32_t start = 0;
  };

  NamePatterns() = default;
  absl::Status Make(size_t i, int64_t* steps);

  std::vector<grammar::Expression> regexes_;
  std::unique_ptr<grammar::AutomatonTotals> totals_;  // outlives the runners
  std::vector<Runner> runners_;                       // [regexes]
};

}  // namespace switchyard::server
