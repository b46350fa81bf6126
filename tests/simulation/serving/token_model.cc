#include "tests/simulation/serving/token_model.h"

#include <algorithm>

#include "tests/simulation/core/random.h"

namespace switchyard::simulation {

uint64_t NextState(uint64_t state, int32_t token) { return Mix(state, static_cast<uint32_t>(token)); }

int32_t ChooseToken(uint64_t state, const batching::SamplingParams& sampling, int32_t index) {
  return static_cast<int32_t>(Mix(Mix(state, sampling.seed), sampling.choice * 1000u + static_cast<uint32_t>(index)) %
                              kVocabulary);
}

std::vector<int32_t> UndisturbedOutputs(const std::vector<int32_t>& prompt, const batching::SamplingParams& sampling,
                                        int32_t max_tokens, int32_t max_context) {
  uint64_t state = kFirstState;
  for (const int32_t token : prompt) state = NextState(state, token);
  std::vector<int32_t> outputs;
  while (static_cast<int32_t>(outputs.size()) < max_tokens &&
         static_cast<int32_t>(prompt.size() + outputs.size()) < max_context) {
    outputs.push_back(ChooseToken(state, sampling, static_cast<int32_t>(outputs.size())));
    state = NextState(state, outputs.back());
    if (std::find(sampling.stop_ids.begin(), sampling.stop_ids.end(), outputs.back()) != sampling.stop_ids.end()) break;
  }
  return outputs;
}

}  // namespace switchyard::simulation
