// The sampler's distribution and logprobs, naive and in double, by full sorts.  Shares no code with
// workers/ops/sampling/sampling.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "scheduler/batching/step.h"

namespace switchyard::reference {

inline std::vector<double> LogSoftmax(const std::vector<double>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (double l : logits) total += std::exp(l - max);
  std::vector<double> out;
  for (double l : logits) out.push_back(l - max - std::log(total));
  return out;
}

// The probability with which each token is drawn.  prompt and output: the tokens so far.
inline std::vector<double> SamplingDistribution(std::vector<double> l, const batching::SamplingParams& p,
                                                const std::vector<int32_t>& prompt,
                                                const std::vector<int32_t>& output) {
  const double never = -std::numeric_limits<double>::infinity();
  std::map<int32_t, int> count;
  for (int32_t t : prompt) count[t] += 0;
  for (int32_t t : output) ++count[t];
  for (auto [id, n] : count) {
    l[id] = l[id] > 0 ? l[id] / p.repetition_penalty : l[id] * p.repetition_penalty;
    if (n > 0) l[id] -= p.presence_penalty + p.frequency_penalty * n;
  }
  for (auto [id, bias] : p.logit_bias) l[id] += bias;
  if (static_cast<int>(output.size()) < p.min_tokens) {
    for (int32_t id : p.stop_ids) l[id] = never;
  }
  std::vector<int32_t> order(l.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return l[a] > l[b]; });
  std::vector<double> prob(l.size(), 0.0);
  if (p.temperature == 0) {
    prob[order[0]] = 1;
    return prob;
  }
  for (size_t i = 0; i < order.size(); ++i) {
    if (p.top_k > 0 && static_cast<int>(i) >= p.top_k) continue;
    prob[order[i]] = std::exp((l[order[i]] - l[order[0]]) / p.temperature);
  }
  double total = std::accumulate(prob.begin(), prob.end(), 0.0), sum = 0;
  for (int32_t id : order) {
    if (p.top_p < 1 && sum >= p.top_p * total) prob[id] = 0;
    sum += prob[id];
  }
  for (double& v : prob) v = v < p.min_p * prob[order[0]] ? 0 : v;
  total = std::accumulate(prob.begin(), prob.end(), 0.0);
  for (double& v : prob) v /= total;
  return prob;
}

}  // namespace switchyard::reference
