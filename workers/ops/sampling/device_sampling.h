// Sampling on the device of the logits, for rows without penalties, bias or logprobs (IsPlainSampling).
//
// The outcome is that of SampleTokens (sampling.h) for such params.  The token is also written to its slot, where the
// next step reads it (ResolveTokens): so a step need not wait until the host knows the tokens of the step before.
// Errors (InvalidArgument): shapes, dtypes or devices that do not fit; more than kMaxPlainVocab logits a row.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "scheduler/batching/step.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

inline constexpr int64_t kMaxPlainVocab = 1 << 18;

// A row's request as 32-bit numbers, on the stream's device.
struct PlainSampling {
  IntView temperature;  // [n] bits of floats
  IntView top_k;        // [n]
  IntView top_p;        // [n] bits of floats
  IntView min_p;        // [n] bits of floats
  IntView random;       // [n * 4] seed low, seed high, choice, index of the output token
  IntView slot;         // [n] -1 = none

  PlainSampling Part(int64_t begin, int64_t count) const;
};

absl::Status SamplePlain(const Stream& stream,
                         const TensorView& logits,  // [n, V] fp32
                         const PlainSampling& requests,
                         const TensorView& tokens,  // [n] int32; -1 = a logit was NaN
                         const TensorView& last);   // [slots] int32: the last token of each slot; 0 if broken

// tokens[i] = planned[i], or, where that is negative, last[-1 - planned[i]].
absl::Status ResolveTokens(const Stream& stream, const IntView& planned,
                           const TensorView& last,     // [slots] int32
                           const TensorView& tokens);  // [n] int32

}  // namespace switchyard::ops
