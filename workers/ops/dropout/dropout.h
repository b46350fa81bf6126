// Dropout and noise of rows in training: y[t][j] = 0 with probability rate, else x[t][j] / (1 - rate).
//
// Which numbers are dropped is a function of the row's key, the site and the layer alone (counter_random.h), so
// backward repeats a call on the gradients.  Products are in AccDType of y's dtype, rounded once.  Parallel over rows.
// Blocks until done.  Borrows all memory.  CPU only.
// Errors (InvalidArgument): shapes that differ, another number of keys than of rows, a rate outside [0, 1).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/ops/dropout/counter_random.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct NoiseDesc {
  double rate = 0;                           // 0: none, and the rest is not read
  absl::Span<const uint64_t> row_keys = {};  // [T] RowKey of each row; borrowed
  NoiseSite site = NoiseSite::kEmbedding;
  int64_t layer = 0;

  bool on() const { return rate > 0; }
};

absl::Status Dropout(const Stream& stream, const NoiseDesc& desc,
                     const TensorView& x,   // [T, H] any dtype
                     const TensorView& y);  // [T, H] any dtype; may be x

// y += what Dropout would write.
absl::Status AddDropped(const Stream& stream, const NoiseDesc& desc,
                        const TensorView& x,   // [T, H] any dtype
                        const TensorView& y);  // [T, H] any dtype

// Multiplies x by numbers that are uniform within 1 ± rate.
absl::Status Jitter(const Stream& stream, const NoiseDesc& desc,
                    const TensorView& x);  // [T, H] any dtype

}  // namespace switchyard::ops
