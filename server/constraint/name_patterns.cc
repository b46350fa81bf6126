#include "server/constraint/name_patterns.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/grammar/grammar.h"
#include "scheduler/grammar/regex.h"
#include "scheduler/grammar/token_trie.h"

namespace switchyard::server {
namespace {

constexpr int64_t kStateSteps = 8;  // of a state, which takes longer to make than to enter

absl::Status BadPatterns(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("\"patternProperties\" ", what));
}

absl::Status TooManySteps(size_t num_patterns) {
  return BadPatterns(absl::StrCat("of ", num_patterns, " patterns need more than ", NamePatterns::kMaxSteps,
                                  " steps to be tried on the names of properties"));
}

absl::Status PatternFault(const absl::Status& status, size_t num_patterns, int64_t steps) {
  return steps < 0 ? TooManySteps(num_patterns) : BadPatterns(status.message());
}

}  // namespace

absl::StatusOr<NamePatterns> NamePatterns::Parse(const SchemaJson& patterns) {
  NamePatterns out;
  for (const auto& [pattern, schema] : patterns.get_ref<const SchemaJson::object_t&>()) {
    absl::StatusOr<grammar::Expression> regex = grammar::ParseRegex(pattern, grammar::RegexMatch::kSearch);
    if (!regex.ok()) return BadPatterns(regex.status().message());
    if (schema != patterns.front()) return BadPatterns("of several patterns with different schemas is not supported");
    out.regexes_.push_back(*std::move(regex));
  }
  out.totals_ = std::make_unique<grammar::AutomatonTotals>();
  out.runners_.resize(out.regexes_.size());
  return out;
}

absl::Status NamePatterns::Make(size_t i, int64_t* steps) {
  Runner& runner = runners_[i];
  if (runner.is_made) return absl::OkStatus();
  runner.is_made = true;
  auto one = std::make_unique<grammar::Grammar>();
  const grammar::RuleId root = one->AddRule("pattern");
  one->Define(root, [&](grammar::StateId from) {
    return grammar::Emit(regexes_[i], grammar::Spelling::kPlain, from, one.get());
  });
  *steps -= kStateSteps * one->num_states();
  if (*steps < 0) return TooManySteps(regexes_.size());
  if (const absl::Status status = one->Finish(); !status.ok())
    return one->full() ? BadPatterns(status.message()) : absl::OkStatus();
  runner.automaton = std::make_unique<grammar::Automaton>(
      std::move(one), std::make_shared<const grammar::TokenTrie>(std::vector<std::string>()), totals_.get());
  const absl::StatusOr<int32_t> start = runner.automaton->Start(steps);
  if (!start.ok()) return PatternFault(start.status(), regexes_.size(), *steps);
  runner.start = *start;
  return absl::OkStatus();
}

absl::StatusOr<bool> NamePatterns::Match(absl::string_view name, int64_t* steps) {
  for (size_t i = 0; i < regexes_.size(); ++i) {
    RETURN_IF_ERROR(Make(i, steps));
    *steps -= static_cast<int64_t>(1 + name.size());
    if (*steps < 0) return TooManySteps(regexes_.size());
    grammar::Automaton* const automaton = runners_[i].automaton.get();
    if (automaton == nullptr) continue;
    int32_t at = runners_[i].start;
    for (const char c : name) {
      const absl::StatusOr<int32_t> next = automaton->Next(at, static_cast<uint8_t>(c), steps);
      if (!next.ok()) return PatternFault(next.status(), regexes_.size(), *steps);
      at = *next;
    }
    if (automaton->Accepts(at)) return true;
  }
  return false;
}

}  // namespace switchyard::server
