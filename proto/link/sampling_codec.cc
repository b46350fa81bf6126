#include "proto/link/sampling_codec.h"

#include <algorithm>

namespace switchyard::link {

v1::SamplingPlan ToProto(const batching::SamplingParams& params) {
  v1::SamplingPlan message;
  message.set_temperature(params.temperature);
  message.set_top_p(params.top_p);
  message.set_top_k(params.top_k);
  message.set_min_p(params.min_p);
  message.set_presence_penalty(params.presence_penalty);
  message.set_frequency_penalty(params.frequency_penalty);
  message.set_repetition_penalty(params.repetition_penalty);
  for (const auto& [token, bias] : params.logit_bias) {
    message.add_bias_ids(token);
    message.add_bias_values(bias);
  }
  message.set_seed(params.seed);
  message.set_choice(params.choice);
  message.set_min_tokens(params.min_tokens);
  message.mutable_stop_ids()->Add(params.stop_ids.begin(), params.stop_ids.end());
  message.set_num_logprobs(params.num_logprobs);
  message.set_num_prompt_logprobs(params.num_prompt_logprobs);
  if (params.expert_paths_from >= 0) message.set_expert_paths_from(params.expert_paths_from);
  return message;
}

batching::SamplingParams FromProto(const v1::SamplingPlan& message) {
  batching::SamplingParams params;
  params.temperature = message.temperature();
  params.top_p = message.top_p();
  params.top_k = message.top_k();
  params.min_p = message.min_p();
  params.presence_penalty = message.presence_penalty();
  params.frequency_penalty = message.frequency_penalty();
  params.repetition_penalty = message.repetition_penalty();
  const int num_biases = std::min(message.bias_ids_size(), message.bias_values_size());
  for (int i = 0; i < num_biases; ++i) params.logit_bias.emplace_back(message.bias_ids(i), message.bias_values(i));
  params.seed = message.seed();
  params.choice = message.choice();
  params.min_tokens = message.min_tokens();
  params.stop_ids.assign(message.stop_ids().begin(), message.stop_ids().end());
  params.num_logprobs = message.num_logprobs();
  params.num_prompt_logprobs = message.num_prompt_logprobs();
  if (message.has_expert_paths_from()) params.expert_paths_from = message.expert_paths_from();
  return params;
}

}  // namespace switchyard::link
