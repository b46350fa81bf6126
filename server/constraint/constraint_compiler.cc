#include "server/constraint/constraint_compiler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/grammar/ebnf.h"
#include "scheduler/grammar/expression.h"
#include "scheduler/grammar/regex.h"
#include "server/constraint/json_schema.h"

namespace switchyard::server {
namespace {

using grammar::Grammar;

absl::StatusOr<std::unique_ptr<const Grammar>> OfRegex(absl::string_view regex) {
  ASSIGN_OR_RETURN(const grammar::Expression parsed, ParseRegex(regex, grammar::RegexMatch::kWhole));
  auto out = std::make_unique<Grammar>();
  out->Define(out->AddRule("regex"),
              [&](grammar::StateId from) { return Emit(parsed, grammar::Spelling::kPlain, from, out.get()); });
  RETURN_IF_ERROR(out->Finish());
  return out;
}

absl::StatusOr<std::unique_ptr<const Grammar>> OfChoices(const std::vector<std::string>& choices) {
  for (const std::string& choice : choices) {
    if (choice.empty()) return absl::InvalidArgumentError("a choice is empty");
  }
  auto out = std::make_unique<Grammar>();
  out->Define(out->AddRule("choice"), [&](grammar::StateId from) { return out->OneOfTexts(from, choices); });
  RETURN_IF_ERROR(out->Finish());
  return out;
}

absl::StatusOr<std::unique_ptr<const Grammar>> GrammarOf(const ConstraintSpec& spec) {
  switch (spec.kind) {
    case ConstraintSpec::Kind::kJsonObject:
      return GrammarOfAnyObject();
    case ConstraintSpec::Kind::kJsonSchema:
      return GrammarOfSchema(spec.text);
    case ConstraintSpec::Kind::kRegex:
      return OfRegex(spec.text);
    case ConstraintSpec::Kind::kChoice:
      return OfChoices(spec.choices);
    case ConstraintSpec::Kind::kGrammar:
      return grammar::ParseEbnf(spec.text);
  }
  return absl::InvalidArgumentError("no kind of constraint");
}

std::string KeyOf(const ConstraintSpec& spec) {
  std::string key = absl::StrCat(static_cast<int>(spec.kind), ":", spec.text);
  for (const std::string& choice : spec.choices) absl::StrAppend(&key, choice.size(), ":", choice);
  return key;
}

}  // namespace

std::shared_ptr<const grammar::TokenTrie> ConstraintCompiler::Trie(int32_t vocab_size) {
  absl::MutexLock lock(&trie_mu_);
  if (trie_ != nullptr) return trie_;
  std::vector<std::string> bytes(static_cast<size_t>(vocab_size));
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (!tokenizer_->IsSkippable(id)) bytes[static_cast<size_t>(id)] = tokenizer_->PieceOf(id).bytes;
  }
  return trie_ = std::make_shared<const grammar::TokenTrie>(std::move(bytes));
}

absl::StatusOr<std::shared_ptr<grammar::Automaton>> ConstraintCompiler::Compile(const ConstraintSpec& spec,
                                                                                int32_t vocab_size) {
  size_t bytes = spec.text.size();
  for (const std::string& choice : spec.choices) bytes += choice.size();
  if (bytes > kMaxTextBytes)
    return absl::InvalidArgumentError(absl::StrCat("has ", bytes, " bytes, limit ", kMaxTextBytes));
  std::string key = KeyOf(spec);
  {
    absl::MutexLock lock(&mu_);
    if (const auto it = by_key_.find(key); it != by_key_.end()) {
      kept_.splice(kept_.begin(), kept_, it->second);
      return it->second->second;
    }
  }
  const absl::Time start = absl::Now();
  absl::StatusOr<std::shared_ptr<grammar::Automaton>> result = Make(spec, vocab_size);
  seconds_ += absl::ToDoubleSeconds(std::max(absl::Now() - start, absl::ZeroDuration()));
  RETURN_IF_ERROR(result.status());
  std::shared_ptr<grammar::Automaton> made = *std::move(result);
  std::list<Kept> dropped;  // destroyed without the lock
  absl::MutexLock lock(&mu_);
  if (const auto it = by_key_.find(key); it != by_key_.end()) return it->second->second;  // another thread was faster
  kept_.emplace_front(key, made);
  by_key_[std::move(key)] = kept_.begin();
  if (kept_.size() > kMaxKept) {
    by_key_.erase(kept_.back().first);
    dropped.splice(dropped.begin(), kept_, std::prev(kept_.end()));
  }
  return made;
}

absl::StatusOr<std::shared_ptr<grammar::Automaton>> ConstraintCompiler::Make(const ConstraintSpec& spec,
                                                                             int32_t vocab_size) {
  if (totals_->states.load() > kMaxStates) {
    absl::MutexLock lock(&mu_);
    by_key_.clear();
    kept_.clear();  // those that no request uses
    if (totals_->states.load() > kMaxStates)
      return absl::ResourceExhaustedError("the constraints of running requests hold all memory that constraints may");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<const Grammar> grammar, GrammarOf(spec));
  const int64_t states = grammar->num_states();
  totals_->states += states;
  std::unique_ptr<grammar::Automaton> made =
      std::make_unique<grammar::Automaton>(std::move(grammar), Trie(vocab_size), &totals_->automata);
  return std::shared_ptr<grammar::Automaton>(made.release(), [totals = totals_, states](grammar::Automaton* automaton) {
    delete automaton;
    totals->states -= states;
  });
}

}  // namespace switchyard::server
