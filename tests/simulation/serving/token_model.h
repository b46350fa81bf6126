// The model that simulated workers serve: the next token is a hash of all tokens before it, of the seed and the choice,
// so that whatever comes out of place changes what follows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "scheduler/batching/step.h"
#include "scheduler/grammar/automaton.h"

namespace switchyard::simulation {

inline constexpr int32_t kVocabulary = 50;
inline constexpr int32_t kPoison = 49;  // a prompt that begins with it crashes the worker that computes it
inline constexpr uint64_t kFirstState = 0x5757;

// What a position's cache cell holds: it depends on all tokens up to there.
uint64_t NextState(uint64_t state, int32_t token);
// The token after a position of this state; `index`: of the output.  Of a mask that is not empty the next that fits.
int32_t ChooseToken(uint64_t state, const batching::SamplingParams& sampling, int32_t index,
                    const grammar::TokenMask& mask = {});
// A constraint with states to be in, so that another token changes which come later; a text may end with kStopId where
// it is whole.
std::shared_ptr<grammar::Automaton> MakeConstraint();
inline constexpr int32_t kStopId = 7;
// A choice's outputs in an undisturbed run: until a stop id, the end of what the constraint allows, max_tokens, or
// max_context tokens in all.  constraint: null for none.
std::vector<int32_t> UndisturbedOutputs(const std::vector<int32_t>& prompt, const batching::SamplingParams& sampling,
                                        int32_t max_tokens, int32_t max_context,
                                        const std::shared_ptr<grammar::Automaton>& constraint = nullptr);

}  // namespace switchyard::simulation
