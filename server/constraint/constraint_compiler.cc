#include "server/constraint/constraint_compiler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/grammar/ebnf.h"
#include "scheduler/grammar/expression.h"
#include "scheduler/grammar/regex.h"
#include "server/constraint/call_grammar.h"
#include "server/constraint/json_schema.h"

namespace switchyard::server {
namespace {

using grammar::Grammar;

constexpr absl::string_view kMark(&kSpecialMark, 1);

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
    case ConstraintSpec::Kind::kCalls:
      return GrammarOfCalls(spec);
  }
  return absl::InvalidArgumentError("no kind of constraint");
}

std::string KeyOf(const ConstraintSpec& spec) {
  std::string key = absl::StrCat(static_cast<int>(spec.kind), spec.reasoning.may_be ? "?" : ":");
  const auto add = [&key](absl::string_view part) { absl::StrAppend(&key, part.size(), ":", part); };
  const ArgumentMarkup& markup = spec.markup;
  for (const std::string* part : {&spec.text, &spec.between, &spec.end, &spec.reasoning.open, &spec.reasoning.close,
                                  &spec.opener, &spec.behind_opener, &markup.key_open, &markup.behind_key,
                                  &markup.before_close, &markup.close, &markup.behind_close})
    add(*part);
  absl::StrAppend(&key, markup.trims_newlines, markup.unknown_is_text, ".");
  for (const auto* list : {&spec.choices, &spec.not_in_text, &spec.reasoning.without, &markup.not_in_values}) {
    absl::StrAppend(&key, list->size(), ".");
    for (const std::string& text : *list) add(text);
  }
  for (const CallSpec& call : spec.calls) {
    add(call.name);  // which errors and the types of parameters go by
    add(call.before);
    add(call.parameters);
    add(call.behind);
    add(call.is_strict ? "strict" : "");
  }
  return key;
}

}  // namespace

std::string MarkSpecialTokens(const tokenizer::Tokenizer& tokenizer, absl::string_view text) {
  std::string marked;
  for (size_t at = 0; at < text.size();) {
    // Names of special tokens in formats begin with one of these.
    size_t end = text.find_first_of("<[", at);
    if (end != at) {
      end = std::min(end, text.size());
      absl::StrAppend(&marked, text.substr(at, end - at));
      at = end;
      continue;
    }
    const size_t close = text.find(text[at] == '<' ? '>' : ']', at);
    absl::string_view name = text.substr(at, close == absl::string_view::npos ? 1 : close + 1 - at);
    const int32_t id = tokenizer.TokenToId(name);
    const bool is_special = id >= 0 && tokenizer.IsSkippable(id);
    if (!is_special) name = name.substr(0, 1);
    absl::StrAppend(&marked, is_special ? kMark : "", name, is_special ? kMark : "");
    at += name.size();
  }
  return marked;
}

std::shared_ptr<const grammar::TokenTrie> ConstraintCompiler::Trie(int32_t vocab_size) {
  absl::MutexLock lock(&trie_mu_);
  if (trie_ != nullptr) return trie_;
  std::vector<std::string> bytes(static_cast<size_t>(vocab_size));
  for (int32_t id = 0; id < vocab_size; ++id) {
    std::string& of = bytes[static_cast<size_t>(id)];
    of = tokenizer_->PieceOf(id).bytes;
    if (of.find(kSpecialMark) != std::string::npos) of.clear();
    if (tokenizer_->IsSkippable(id) && !of.empty()) of = absl::StrCat(kMark, of, kMark);
  }
  return trie_ = std::make_shared<const grammar::TokenTrie>(std::move(bytes));
}

absl::StatusOr<std::shared_ptr<grammar::Automaton>> ConstraintCompiler::Compile(const ConstraintSpec& spec,
                                                                                int32_t vocab_size) {
  size_t bytes = spec.text.size();
  for (const std::string& choice : spec.choices) bytes += choice.size();
  for (const CallSpec& call : spec.calls) bytes += call.parameters.size();
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
  if (!spec.reasoning.close.empty()) {
    ASSIGN_OR_RETURN(grammar, BehindFreeText(spec.reasoning, *grammar));
  }
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
