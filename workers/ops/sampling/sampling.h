// Samples the next token from logits, and computes logprobs.
//
// Order: token mask → penalties → logit_bias → min_tokens mask (left out where a token mask allows nothing but stop
// tokens) → temperature < 1e-5: the largest logit, ties to the smaller id; else temperature → top_k → top_p → min_p →
// one draw (random.h, keyed by seed, choice and index of the output token).
//   repetition penalty r > 0: logits of tokens in prompt or output: / r if positive, · r if negative (HF);
//   presence, frequency: - presence - frequency · count, over output tokens alone (OpenAI, vLLM);
//   top_k: the k largest, ties to the smaller id;   top_p: the shortest prefix by falling probability (renormalised
//   after top_k) that reaches top_p, the token that reaches it included;   min_p: probability >= min_p · the largest.
// Logprobs are those of the raw logits, before everything above; rank 1 is the most likely, equal logits rank equal.
//
// A row's outcome depends on its logits, params and history alone, never on the batch.  Cost O(V) for a row; filters
// sort only what they keep.  Parallel over rows.  Borrows all memory.
// Logits that penalties and bias raise beyond Acc's largest number are set to it.
// A row with a NaN or +Inf logit, or without a finite one, gets kNonFinite and no token (-Inf forbids a token).
// Does not do: logits on a device (copy them by HostCopy, workers/tensor/copy.h), speculation.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/batching/step.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

// The tokens that a sequence has seen, for penalties.  The rank's slot owns it.  Thread-compatible.
class TokenHistory {
 public:
  // tokens[0, num_prompt_tokens) are the prompt, the rest was generated before a preemption.
  void Reset(absl::Span<const int32_t> tokens, int64_t num_prompt_tokens);
  void AppendOutput(int32_t token);

  int64_t num_output() const { return num_output_; }  // the index of the next output token
  // Every token of the sequence, with its count in the output: 0 = in the prompt alone.
  const absl::flat_hash_map<int32_t, int32_t>& output_counts() const { return output_counts_; }

 private:
  absl::flat_hash_map<int32_t, int32_t> output_counts_;
  int64_t num_output_ = 0;
};

struct SampleRequest {
  const batching::SamplingParams* params = nullptr;  // borrowed
  const TokenHistory* history = nullptr;             // borrowed; the token to draw has index history->num_output()
  const grammar::TokenMask* mask = nullptr;          // borrowed; null: any token may be drawn
};

struct SampleOutcome {
  batching::ItemStatus status = batching::ItemStatus::kOk;
  int32_t token = -1;
  batching::PositionLogprobs logprobs;  // filled when params->num_logprobs >= 0
};

// Token ids outside [0, V) in params (bias, stop ids), history or mask are ignored: the server has checked them.
// Errors (InvalidArgument): logits not [n, V] fp32 or fp64, spans of another length.
absl::Status SampleTokens(const Stream& stream,
                          const TensorView& logits,  // [n, V] fp32 or fp64 on the host; rows may be strided
                          absl::Span<const SampleRequest> requests,  // [n]
                          absl::Span<SampleOutcome> outcomes);       // [n]

struct LogprobRequest {
  int32_t token = 0;    // the token of this position
  int32_t num_top = 0;  // the number of alternatives
};

// Logprobs of given tokens (prompt_logprobs).  statuses may be empty; else kNonFinite marks broken rows, which get no
// logprobs.  Errors (InvalidArgument): as SampleTokens; a token outside [0, V).
absl::Status TokenLogprobs(const Stream& stream,
                           const TensorView& logits,  // [n, V] fp32 or fp64 on the host; rows may be strided
                           absl::Span<const LogprobRequest> requests,        // [n]
                           absl::Span<batching::PositionLogprobs> logprobs,  // [n]
                           absl::Span<batching::ItemStatus> statuses);       // [n] or empty

}  // namespace switchyard::ops
