// The numbers, scales and least values of GGUF's blocks, for weights that hold them as they are
// (workers/ops/gemm/quantized/weight_format.h).  Thread-safe (pure).
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "workers/ops/gemm/quantized/weight_format.h"

namespace switchyard::checkpoint {

struct BlockNumbers {
  ops::WeightFormat format = ops::WeightFormat::kPlain;
  // Reads num_blocks blocks as one row of numbers.
  void (*read)(const uint8_t* blocks, int64_t num_blocks, const ops::StoredNumbers& to) = nullptr;
};

// Of Q8_0, Q4_0, Q4_1 and MXFP4, bit for bit; of Q4_K, as Q4_1, and Q6_K, with scales and least values that are
// products of a block's and a group's, rounded to fp16.  kPlain for other types.
BlockNumbers NumbersOfType(absl::string_view type);

}  // namespace switchyard::checkpoint
