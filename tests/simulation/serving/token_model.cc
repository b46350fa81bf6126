#include "tests/simulation/serving/token_model.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/grammar/ebnf.h"
#include "scheduler/grammar/matcher.h"
#include "tests/simulation/core/random.h"

namespace switchyard::simulation {

uint64_t NextState(uint64_t state, int32_t token) { return Mix(state, static_cast<uint32_t>(token)); }

namespace {

bool Fits(const grammar::TokenMask& mask, int32_t token) {
  if (mask.bits.empty()) return std::binary_search(mask.ids.begin(), mask.ids.end(), token);
  return ((mask.bits[static_cast<size_t>(token / 8)] >> (token % 8)) & 1) != 0;
}

}  // namespace

int32_t ChooseToken(uint64_t state, const batching::SamplingParams& sampling, int32_t index,
                    const grammar::TokenMask& mask) {
  auto token = static_cast<int32_t>(
      Mix(Mix(state, sampling.seed), sampling.choice * 1000u + static_cast<uint32_t>(index)) % kVocabulary);
  for (int32_t i = 0; i < kVocabulary && !mask.empty() && !Fits(mask, token); ++i) token = (token + 1) % kVocabulary;
  return token;
}

// Token t is the character '0' + t, but for the stop id, which has no text.
std::shared_ptr<grammar::Automaton> MakeConstraint() {
  static grammar::AutomatonTotals totals;
  auto grammar = grammar::ParseEbnf("root ::= (([0-6] [A-Z]{1,3} | [A-Z] [8-9]) [H-a]?){0,12}");
  SY_CHECK(grammar.ok());
  std::vector<std::string> tokens;
  for (int t = 0; t < kVocabulary; ++t)
    tokens.push_back(t == kStopId ? "" : std::string(1, static_cast<char>('0' + t)));
  return std::make_shared<grammar::Automaton>(*std::move(grammar),
                                              std::make_shared<const grammar::TokenTrie>(std::move(tokens)), &totals);
}

std::vector<int32_t> UndisturbedOutputs(const std::vector<int32_t>& prompt, const batching::SamplingParams& sampling,
                                        int32_t max_tokens, int32_t max_context,
                                        const std::shared_ptr<grammar::Automaton>& constraint) {
  std::optional<grammar::Matcher> matcher;
  if (constraint != nullptr) matcher.emplace(constraint);
  uint64_t state = kFirstState;
  for (const int32_t token : prompt) state = NextState(state, token);
  std::vector<int32_t> outputs;
  while (static_cast<int32_t>(outputs.size()) < max_tokens &&
         static_cast<int32_t>(prompt.size() + outputs.size()) < max_context) {
    grammar::TokenMask mask;
    if (matcher.has_value()) {
      const absl::StatusOr<grammar::MaskPtr> made = matcher->NextMask();
      SY_CHECK(made.ok());
      mask = **made;
      if (mask.empty()) break;
      if (matcher->accepts() && mask.bits.empty()) {
        mask.ids.insert(std::lower_bound(mask.ids.begin(), mask.ids.end(), kStopId), kStopId);
      } else if (matcher->accepts()) {
        mask.bits[kStopId / 8] = static_cast<char>(mask.bits[kStopId / 8] | (1 << (kStopId % 8)));
      }
    }
    outputs.push_back(ChooseToken(state, sampling, static_cast<int32_t>(outputs.size()), mask));
    state = NextState(state, outputs.back());
    if (std::find(sampling.stop_ids.begin(), sampling.stop_ids.end(), outputs.back()) != sampling.stop_ids.end()) break;
    if (matcher.has_value()) SY_CHECK_OK(matcher->Accept(outputs.back()));
  }
  return outputs;
}

}  // namespace switchyard::simulation
